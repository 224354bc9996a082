"""What the command that starts one worker of a role is called; the router's flag for its address has the same name."""

from segue.batch.role import Role

WORKER_COMMANDS = {Role.PREFILL: "prefill", Role.DECODE: "decode", Role.BOTH: "worker"}
