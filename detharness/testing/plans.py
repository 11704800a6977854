"""Does a kernel's plan fix its bits, whatever the schedule?"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import Tensor

from detharness.testing.comparison import Rows, first_difference
from detharness.testing.failures import BitsMovedError, Difference, NothingComparedError
from detharness.testing.inputs import tensors
from detharness.testing.reproduction import Script, described


def assert_plan_holds(
    *,
    kernel: Callable[..., Any],
    plan: object,
    schedules: Sequence[object],
    inputs: Mapping[str, object],
    seed: int = 0,
) -> int:
    """Fail unless ``kernel`` gives the same bits under one ``plan`` and every one of ``schedules``.

    The plan says in which order numbers are added, the schedule everything else (tiles, stages, threads over
    independent outputs). The kernel is called as ``kernel(**inputs, plan=plan, schedule=schedule)``, on fresh copies of
    its tensors, and returns a tensor or a sequence of such. Returns how many schedules were compared with the first.
    Raises BitsMovedError, or NothingComparedError where there are no two schedules, or all elements are equal.
    """
    __tracebackhide__ = True
    apart = [schedule for index, schedule in enumerate(schedules) if schedule not in schedules[:index]]
    if len(apart) < 2:
        raise NothingComparedError(f"schedules holds {len(apart)} that differ: a plan is held against two at least")
    operands = tensors(inputs, seed=seed, first=0, rows=None)

    def run(schedule: object) -> Rows:
        fresh = {name: value.clone() if isinstance(value, Tensor) else value for name, value in operands.items()}
        return Rows.whole(kernel(**fresh, plan=plan, schedule=schedule))

    first = run(apart[0])
    if first.is_constant():
        raise NothingComparedError("every element of the kernel's output is equal: nothing in it could move")
    for schedule in apart[1:]:
        found = first_difference(first, run(schedule))
        if found is not None:
            again = first_difference(run(apart[0]), run(apart[0])) or first_difference(run(schedule), run(schedule))
            raise BitsMovedError(
                subject=described(kernel),
                axes=("run to run",) if again else ("schedule",),
                rows=found.shape[0] if found.shape else 1,
                row=found.element[0] if found.element else 0,
                left=f"{apart[0]}",
                right=f"{schedule}",
                difference=found,
                reproduction=_script(kernel, plan, (apart[0], schedule), inputs, seed, found),
            )
    return len(apart) - 1


def _script(
    kernel: Callable[..., Any],
    plan: object,
    pair: tuple[object, object],
    inputs: Mapping[str, object],
    seed: int,
    difference: Difference,
) -> str:
    script = Script()
    script.function("kernel", kernel)
    script.value("plan", plan)
    sides = ("left", "right")
    for side, schedule in zip(sides, pair, strict=True):
        script.arguments("inputs", inputs, seed=seed, first=0, rows=None)  # Anew: a kernel may write into its inputs.
        script.value("schedule", schedule)
        script.line(f"{side} = kernel(**inputs, plan=plan, schedule=schedule)")
    script.comparison("", "", difference)
    return script.text()
