"""A member whose patch against the base fits a budget, or a sentence why there is none.

Owns: the order of the modes, the limits, and what is recorded of a member that was made different on purpose.
Does not know: command lines, how codes are chosen or coded.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from builder.cact.reader import Container, read_container
from builder.delta import make_patch
from builder.delta.make import DEFAULT_EFFORT
from builder.errors import FamilyError
from builder.family.adapter import Adapter, read_adapter
from builder.family.budget.evaluate import Agreement, Example, compare
from builder.family.budget.measure import Arrival, measure_arrival
from builder.family.budget.requantiser import Point, Requantised, Requantiser, assemble
from builder.family.budget.search import (
    Found,
    first_that_fits,
    friendly_point,
    step_points,
    trade_points,
)
from builder.family.budget.size import PATCH_FRIENDLY, parse_size
from builder.family.budget.wanted import WantedChange, rotated, wanted_changes
from builder.family.export import CheckpointExporter, Exporters
from builder.family.family import Member

ZERO_RESIDUAL, RATE_DISTORTION = "zero-residual", "rate-distortion"
DECIMALS = 4


@dataclass(frozen=True)
class Budget:
    """What a member's patch may cost, and how far the member may move for it."""

    size: int | None
    """Bytes; None takes the patch-friendly point, whatever its size."""
    min_gain: float = 0.97
    max_gain: float = 1.03
    max_kl: float | None = None
    min_exact_match: float | None = None
    examples: tuple[Example, ...] = ()

    @classmethod
    def of(cls, text: str) -> Budget:
        """As `family.toml` has it."""
        return cls(None if text == PATCH_FRIENDLY else parse_size(text))


@dataclass(frozen=True)
class Lossy:
    """What is recorded of a member that is not the plain export."""

    mode: str
    gain: float
    relative_error: float
    budget_bytes: int | None


@dataclass(frozen=True)
class Budgeted:
    """A member and its patch; `lossy` is None where the plain export fits the budget as it is."""

    member: Member
    data: bytes
    patch: bytes
    lossy: Lossy | None
    ranks: tuple[int, ...]
    """Of the tensors' shifts; 0 where nothing of the change is left."""
    arrival: Arrival
    plain_arrival: Arrival
    plain_patch_bytes: int
    agreement: Agreement | None


class BudgetExporter:
    """The base once, and members against it."""

    def __init__(self, base: bytes, exporters: Exporters, *, effort: int = DEFAULT_EFFORT) -> None:
        self._exporters, self._effort = exporters, effort
        self._base = read_container(base)

    @property
    def base(self) -> bytes:
        """The base's container, which every patch is against."""
        return bytes(self._base.data)

    def export(
        self, member: Member, budget: Budget, told: Callable[[str], None] = lambda _: None
    ) -> Budgeted:
        """`told` hears of each trial.

        Raises `FamilyError` (no_low_rank_change, budget_unreachable, budget_limit).
        """
        adapter, exporter = self._sources(member)
        changes = self._changes(member, adapter, exporter)
        plain = read_container(self._exporters.export(member, None))
        trial = _Trials(self._base, plain, changes, adapter, exporter, self._effort, told, member.id)
        plain_patch = trial.patch(bytes(plain.data), b"")
        if budget.size is not None and len(plain_patch) <= budget.size:
            return self._plain(member, plain, plain_patch, changes)
        point = friendly_point() if budget.size is None else _choose(member, trial, budget.size)
        return self._made(member, budget, trial, point, len(plain_patch))

    def _made(
        self, member: Member, budget: Budget, trial: _Trials, point: Point, plain_patch_bytes: int
    ) -> Budgeted:
        tensors, data, patch = trial.at(point)
        _require_size(member, patch, budget)
        arrival = measure_arrival(self._base, read_container(data), trial.changes)
        _require_gain(member, arrival, budget)
        plain = bytes(trial.plain.data)
        agreement = compare(plain, data, member, list(budget.examples)) if budget.examples else None
        _require_agreement(member, agreement, budget)
        mode = ZERO_RESIDUAL if point.trade is None else RATE_DISTORTION
        gain, error = round(arrival.gain, DECIMALS), round(arrival.relative_error, DECIMALS)
        return Budgeted(
            member,
            data,
            patch,
            Lossy(mode, gain, error, budget.size),
            tuple(tensor.rank for tensor in tensors),
            arrival,
            measure_arrival(self._base, trial.plain, trial.changes),
            plain_patch_bytes,
            agreement,
        )

    def _plain(self, member: Member, plain: Container, patch: bytes, changes: list[WantedChange]) -> Budgeted:
        arrival = measure_arrival(self._base, plain, changes)
        return Budgeted(member, bytes(plain.data), patch, None, (), arrival, arrival, len(patch), None)

    def _sources(self, member: Member) -> tuple[Adapter, CheckpointExporter]:
        if member.adapter is None:
            raise FamilyError(
                f"{member.id}: has no adapter, and the change of a whole model is not of low rank; export it "
                "without a budget",
                code="no_low_rank_change",
            )
        return read_adapter(member.adapter), self._exporters.of(member)

    def _changes(self, member: Member, adapter: Adapter, exporter: CheckpointExporter) -> list[WantedChange]:
        changes = wanted_changes(exporter, adapter)
        if not changes:
            raise FamilyError(f"{adapter.path}: changes no projection", code="no_low_rank_change")
        start = read_container(exporter.export(None))
        for change in changes:
            if change.name not in self._base or self._base.raw(change.name) != start.raw(change.name):
                raise FamilyError(
                    f"{member.id}: {change.name} of its checkpoint is not the base's, so the change between "
                    "them is not of low rank; export it without a budget",
                    code="no_low_rank_change",
                )
        return changes


class _Trials:
    """Points of one member, each with its real patch."""

    def __init__(
        self,
        base: Container,
        plain: Container,
        changes: list[WantedChange],
        adapter: Adapter,
        exporter: CheckpointExporter,
        effort: int,
        told: Callable[[str], None],
        name: str,
    ) -> None:
        self._name = name
        self.plain, self.changes = plain, changes
        self._base, self._effort, self._told = bytes(base.data), effort, told
        self._adapter, self._exporter = adapter, exporter
        self._requantiser = Requantiser(base, changes, adapter.seed)

    def at(self, point: Point) -> tuple[list[Requantised], bytes, bytes]:
        """Tensors, container and patch."""
        if point.trade is not None and not self._requantiser.has_weights:
            parameters = self._exporter.parameters(self._adapter)
            self._requantiser.give_weights(rotated(parameters.array(c.name)) for c in self.changes)
        tensors = self._requantiser.run(point)
        data, shifts = assemble(self.plain, tensors)
        return tensors, data, self.patch(data, shifts)

    def size(self, point: Point) -> int:
        """Bytes of the patch."""
        size = len(self.at(point)[2])
        kind = f"step {point.step:.4f}" if point.trade is None else f"trade {point.trade:.4f}"
        self._told(f"{self._name}: {kind}: {size:,} bytes")
        return size

    def patch(self, data: bytes, shifts: bytes) -> bytes:
        """The exact patch to any target."""
        return make_patch(
            self._base, data, effort=self._effort, adapter_seed=self._adapter.seed, shifts=shifts
        )


def _choose(member: Member, trial: _Trials, size: int) -> Point:
    """Rate and distortion where that fits, else zero residual."""
    found = Found(None, 0)
    for points in (trade_points(), step_points()):
        found = first_that_fits(points, size, trial.size)
        if found.point is not None:
            # A trial's size does not depend on the boost; now it is looked for with care.
            return Point(found.point.step, found.point.trade)
    raise FamilyError(
        f"{member.id}: no patch of at most {size:,} bytes can be reached, the smallest has {found.size:,}; "
        "raise the budget",
        code="budget_unreachable",
    )


def _require_size(member: Member, patch: bytes, budget: Budget) -> None:
    """The point was chosen by a trial; what is published is held to the budget itself."""
    if budget.size is not None and len(patch) > budget.size:
        raise FamilyError(
            f"{member.id}: its patch has {len(patch):,} bytes, must be at most {budget.size:,}, as its trial "
            "had; raise the budget, and report this contradiction as an error of this builder",
            code="budget_limit",
        )


def _require_gain(member: Member, arrival: Arrival, budget: Budget) -> None:
    if not budget.min_gain <= arrival.gain <= budget.max_gain:
        raise FamilyError(
            f"{member.id}: gain is {arrival.gain:.4f}, must be {budget.min_gain:g} to {budget.max_gain:g}; "
            "raise the budget, or widen --min-gain and --max-gain",
            code="budget_limit",
        )


def _require_agreement(member: Member, agreement: Agreement | None, budget: Budget) -> None:
    if agreement is None:
        return
    if budget.max_kl is not None and agreement.kl > budget.max_kl:
        raise FamilyError(
            f"{member.id}: KL to the plain export is {agreement.kl:.5f}, must be at most {budget.max_kl:g}; "
            "raise the budget, or --max-kl",
            code="budget_limit",
        )
    if budget.min_exact_match is not None and agreement.exact_match < budget.min_exact_match:
        raise FamilyError(
            f"{member.id}: exact match with the plain export is {agreement.exact_match:.4f}, must be at "
            f"least {budget.min_exact_match:g}; raise the budget, or lower --min-exact-match",
            code="budget_limit",
        )
