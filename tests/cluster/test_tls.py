"""A whole deployment whose workers and router show certificates to each other, and the status of it."""

from dataclasses import asdict
from pathlib import Path

from tests.cluster.command import segue
from tests.cluster.deployment import deployed
from tests.cluster.test_faults import answer, until_readiness
from tests.support.certificates import certificates


def test_with_certificates_questions_are_answered_and_the_status_is_shown_to_who_has_one(tmp_path: Path) -> None:
    tls = asdict(certificates(tmp_path / "tls"))
    config = tmp_path / "segue.toml"
    config.write_text("[tls]\n" + "".join(f'{name} = "{value}"\n' for name, value in tls.items()))
    with deployed(*(f"tls.{name}={value}" for name, value in tls.items())) as deployment:
        until_readiness(deployment, 200)
        assert len(answer(deployment)) == 60
        shown = segue("status", "--url", deployment.url, "--config", str(config))
        assert shown.returncode == 0, shown.stderr
        _, *rows = shown.stdout.splitlines()
        assert sorted(row.split()[0] for row in rows) == ["decode", "prefill"]
        assert "?" not in shown.stdout
        assert "says nothing of itself" in segue("status", "--url", deployment.url).stdout
