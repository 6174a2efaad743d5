"""train: trains a graph file or a model folder as a TOML file says, and goes on from its last checkpoint."""

from __future__ import annotations

import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tensor_graphs.cli import ctrl_c, option_groups, options
from tensor_graphs.interrupted import CODE
from tensor_graphs.phase_times import IMPORT, phase

if TYPE_CHECKING:
    from tensor_graphs.cli.train_file import Task, TrainFile
    from tensor_graphs.training.trainer import Trainer

CHECKPOINT, WEIGHTS, LOSSES, PICTURE = "checkpoint.safetensors", "weights.safetensors", "losses.csv", "loss.svg"


def train(
    *,
    source: Annotated[
        Path, typer.Argument(metavar="CONFIG|FOLDER", help="A TOML file, or a folder with train.toml.", show_default=False)
    ],
    resume: Annotated[bool, typer.Option("--resume", help="Go on from the checkpoint in the run's folder.")] = False,
    steps: Annotated[int | None, typer.Option("--steps", min=1, help="Steps in all, instead of the file's.")] = None,
    backends: options.Backends = None,
    precision: options.PrecisionWords = None,
    threads: options.Threads = None,
    memory_limit: options.MemoryLimit = None,
    common: option_groups.Common,
) -> None:
    """Train a graph or a model: gradients, updates, checkpoints, and a plot of the loss. Ctrl-C saves; --resume goes on."""
    with phase(IMPORT):
        from tensor_graphs.cli import train_file
        from tensor_graphs.training.trainer import Trainer

    run = train_file.read(source)
    _prepare_folder(run, resume)
    task = train_file.task_of(run)
    with options.status("compiling", common.json):
        trainer = Trainer(task.graph, train_file.optimisers(run), task.weights, clip_norm=run.clip_norm or None,
                          batches=run.accumulate, seed=run.seed, backends=options.given_backends(backends), precision=precision,
                          threads=threads, memory_limit=memory_limit, database=common.store(),
                          at={"n": run.batch if task.rows else run.length} if "n" in task.graph.dims else None)
    for note in trainer.plan.notes:
        options.note(note)
    losses: list[float] = []
    if resume:
        trainer.load(run.folder / CHECKPOINT)
        lines = options.text_of("the run's", str(run.folder / LOSSES), "begin again").split()
        losses = [float(line.partition(",")[2]) for line in lines[1:trainer.steps + 1]]
    stop = threading.Event()
    with ctrl_c.taken_by(stop.set):
        seconds = _loop(run, task, trainer, losses, steps or run.steps, stop, common.json)
    _save(run, trainer, losses, last=True)
    _tell(run, trainer, losses, seconds, stop.is_set(), common.json)


def _prepare_folder(run: TrainFile, resume: bool) -> None:
    checkpoint = run.folder / CHECKPOINT
    if resume != checkpoint.exists():
        raise options.NotPossible(f"there is no checkpoint {checkpoint}\n  fix: begin without --resume" if resume else
                                  f"{checkpoint} is there already\n  fix: --resume goes on from it; or another out = \"…\"")
    try:
        run.folder.mkdir(parents=True, exist_ok=True)
    except OSError as e:
        raise options.NotPossible(f"the folder {run.folder} cannot be made: {e.strerror}\n  fix: another out = \"…\"") from None


def _loop(run: TrainFile, task: Task, trainer: Trainer, losses: list[float], steps: int, stop: threading.Event,
          quiet: bool) -> float:
    """Run steps until there are as many, or until `stop`; append the mean loss of each. Return the seconds of the steps alone."""
    began = last_line = time.perf_counter()
    spent = 0.0
    while trainer.steps < steps and not stop.is_set():
        of_step = []
        for _ in range(run.accumulate):
            batch = task.batches[trainer.seen]
            started = time.perf_counter()
            out = trainer.step(batch if task.rows else {name: rows[0] for name, rows in batch.items()})
            of_step.append(float(out["loss"]))
            spent += time.perf_counter() - started
        losses.append(sum(of_step) / len(of_step))
        now = time.perf_counter()
        if trainer.steps % run.save_every == 0 and trainer.steps < steps:
            _save(run, trainer, losses)
        if not quiet and (now - last_line > 1 or trainer.steps in (1, steps)):
            last_line = now
            _line(trainer.steps, steps, losses[-1], now - began)
    return spent


def _line(step: int, steps: int, loss: float, seconds: float) -> None:
    """Print a line; on a terminal it replaces the one before."""
    text = f"step {step} of {steps}: loss {loss:.4f}, {seconds:.1f} s"
    end = "\r" if sys.stdout.isatty() and step < steps else "\n"
    print(f"{text:60s}" if sys.stdout.isatty() else text, end=end, flush=True)


def _save(run: TrainFile, trainer: Trainer, losses: list[float], *, last: bool = False) -> None:
    """Write losses, then the checkpoint: a run that is killed in between resumes with as many losses as it needs. At the end also
    parameters and picture."""
    from tensor_graphs.devices.safetensors import write_weights
    from tensor_graphs.language.dtypes import parse_dtype
    from tensor_graphs.views.loss_curve import picture

    lines = ["step,loss", *(f"{step},{loss!r}" for step, loss in enumerate(losses, 1))]
    options.write_file(run.folder / LOSSES, "\n".join(lines) + "\n", "out")
    trainer.save(run.folder / CHECKPOINT)
    if last:
        weights = trainer.weights
        types = {name: (parse_dtype(array.dtype), array.shape) for name, array in weights.items()}
        write_weights(run.folder / WEIGHTS, types, weights.__getitem__)
        if losses:
            options.write_file(run.folder / PICTURE, picture(losses, run.file.stem), "out")


def _tell(run: TrainFile, trainer: Trainer, losses: list[float], seconds: float, stopped: bool, json: bool) -> None:
    """Print the result. Raises Exit with Ctrl-C's code where the run was stopped."""
    from tensor_graphs.views.loss_curve import in_one_line

    if json:
        document: dict[str, Any] = {"steps": trainer.steps, "losses": losses, "seconds": seconds, "stopped": stopped,
                                    "checkpoint": str(run.folder / CHECKPOINT), "weights": str(run.folder / WEIGHTS),
                                    "picture": str(run.folder / PICTURE)}
        options.print_json(document)
    else:
        if losses:
            print(f"loss {losses[0]:.4f} {in_one_line(losses)} {losses[-1]:.4f}")
        print(f"written: {run.folder}/{{{','.join((CHECKPOINT, WEIGHTS, LOSSES, PICTURE))}}}")
    if stopped:
        options.note(f"stopped after step {trainer.steps}; tg train {run.file} --resume goes on")
        options.told = True
        raise typer.Exit(CODE)
