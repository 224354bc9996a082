"""One training step, forward to optimizer; on a GPU captured once per row length and replayed."""

import torch
from torch import Tensor

from segue.zoo.architecture import Architecture
from segue.zoo.optimizer import OptimizerState, adamw_step
from segue.zoo.parameters import decay_mask, named_views
from segue.zoo.rows import QUESTION, SOLUTION, StepRows
from segue.zoo.training_model import PLAIN, Rows, TrainingModel, compiled_kernels, make_rows

QUESTION_WEIGHT = 0.1
WARMUP_RUNS = 2


class TrainStep:
    """Runs steps over `state` in place. Inputs go through fixed buffers, so a captured graph reads the new ones."""

    def __init__(self, arch: Architecture, state: OptimizerState, token_count: int) -> None:
        self._device = state.flat.device
        self._arch = arch
        self._state = state
        self._token_count = token_count
        on_gpu = self._device.type == "cuda"
        self._dtype = torch.bfloat16 if on_gpu else torch.float32
        self._model = TrainingModel(arch, compiled_kernels() if on_gpu else PLAIN, self._dtype)
        self._decay_mask = decay_mask(arch).to(self._device)
        self._tokens = torch.zeros(token_count, dtype=torch.int64, device=self._device)
        self._targets = torch.zeros_like(self._tokens)
        self._kinds = torch.zeros(token_count, dtype=torch.uint8, device=self._device)
        self._rate = torch.zeros((), device=self._device)
        self._rows: dict[int, Rows] = {}
        self._graphs: dict[int, torch.cuda.CUDAGraph] = {}
        self.solution_loss_sum = torch.zeros((), device=self._device)  # over steps, of the mean over solution tokens

    def prepare(self, row_length: int) -> None:
        """Compile and capture for this row length; changes no state."""
        self._rows[row_length] = make_rows(
            self._arch, self._token_count // row_length, row_length, self._device, self._dtype
        )
        if self._device.type != "cuda":
            return
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(WARMUP_RUNS):
                self._gradient(self._rows[row_length])
        torch.cuda.current_stream().wait_stream(stream)
        pool = next(iter(self._graphs.values())).pool() if self._graphs else None
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=pool):
            self._run(self._rows[row_length])
        self._graphs[row_length] = graph

    def __call__(self, rows: StepRows, rate: float) -> None:
        self._rate.fill_(rate)
        for buffer, array in (
            (self._tokens, rows.tokens),
            (self._targets, rows.targets),
            (self._kinds, rows.kinds),
        ):
            source = torch.from_numpy(array)
            if self._device.type == "cuda":
                source = source.pin_memory().to(self._device, non_blocking=True)
            buffer.copy_(source)
        if self._graphs:
            self._graphs[rows.row_length].replay()
        else:
            self._run(self._rows[rows.row_length])

    def _run(self, rows: Rows) -> None:
        gradient, solution_loss = self._gradient(rows)
        self.solution_loss_sum.add_(solution_loss)
        adamw_step(self._state, gradient, self._decay_mask, self._rate)

    def _gradient(self, rows: Rows) -> tuple[Tensor, Tensor]:
        weights = {
            name: view.detach().requires_grad_() for name, view in named_views(self._arch, self._state.flat).items()
        }
        losses = self._model.losses(weights, self._tokens, self._targets, rows)
        solution = (self._kinds == SOLUTION).float()
        question = (self._kinds == QUESTION).float()
        shares = solution + QUESTION_WEIGHT * question
        loss = (losses * shares).sum() / shares.sum().clamp(min=1.0)
        gradients = torch.autograd.grad(loss, list(weights.values()))
        with torch.no_grad():
            solution_loss = (losses * solution).sum() / solution.sum().clamp(min=1.0)
        return torch.cat([gradient.flatten() for gradient in gradients]), solution_loss
