"""Checkpoints and adapters to containers.

Owns: `export_member`, `export_family`: merge in float32, quantise, write. Does not know: prompts, the web.
A tensor that no adapter touches is encoded once per checkpoint, however many members stand on it.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np

from builder.cact.header import Header, pack_header, parse_header
from builder.cact.layout import GROUP, Kind, padded
from builder.cact.order import HEAD_NAMES, Slot, model_slots
from builder.cact.quantise import group_norms, quantise
from builder.cact.reader import read_container
from builder.cact.sentencepiece_model import read_sentencepiece
from builder.cact.tokenizer import pack_tokenizer
from builder.cact.writer import Blob, cq_blob, half_blob, raw_blob, single_blob, write_container
from builder.errors import ContainerError, FamilyError, plain_name, some_names
from builder.family.adapter import Adapter, merge, read_adapter
from builder.family.checkpoint import Checkpoint, read_checkpoint
from builder.family.family import Family, Member
from builder.family.geometry import header_of
from builder.family.ladder import kept_layers
from builder.family.parameters import HEAD_KEYS, Parameters, hada_permutation
from builder.family.safetensors_file import Floats
from builder.family.settings import FamilyTable
from builder.files import check_folder, check_target, write_whole

WEIGHT_BITS = 4
"""Upstream's exporter writes no other width."""
HEAD_CODES = {name: code for code, name in HEAD_NAMES[3].items()}
HALF_LIMIT = 65520.0
"""From here on fp16 rounds to infinity."""
HEAD_MATRICES = ("probes", "query", "proj")
"""Fields of a head that are CQ; the others are FP16."""

Progress = Callable[[str, int, int], None]
"""Told (member id, tensors done, tensors in all) while a member is exported."""
Quantiser = Callable[[Floats], Blob]


def export_member(family: Family, member_id: str, progress: Progress | None = None) -> bytes:
    """The `.cact` of one member. Raises `UsageError` (unknown_member), `FamilyError`, `ContainerError`."""
    return Exporters(family).export(family.member(member_id), progress)


def export_family(family: Family, folder: Path, progress: Progress | None = None) -> list[Path]:
    """Write every member to `folder/<id>.cact`; returns the paths in member order.

    A file appears complete or not at all. Raises `FamilyError`, `ContainerError`, `RefusedError`.
    """
    check_places(family, family.members, folder)
    exporters = Exporters(family)
    paths = []
    for member in family.members:
        data = exporters.export(member, progress)
        paths.append(write_member(member, folder, data))
    return paths


def check_places(family: Family, members: Sequence[Member], folder: Path) -> None:
    """Before any work: raise `RefusedError` (bad_target) where a member could not or must not be written."""
    check_folder(folder)
    if folder.is_dir():
        for member in members:
            check_target(_place(member, folder), family.sources)


def write_member(member: Member, folder: Path, data: bytes) -> Path:
    """Write `folder/<id>.cact`, whole or not at all. Raises `RefusedError` (bad_target)."""
    check_folder(folder)
    folder.mkdir(parents=True, exist_ok=True)
    write_whole(_place(member, folder), data)
    return _place(member, folder)


def _place(member: Member, folder: Path) -> Path:
    return folder / f"{member.id}.cact"


class Exporters:
    """The family's checkpoints, each read once."""

    def __init__(self, family: Family) -> None:
        self._family = family
        self._by_path: dict[Path, CheckpointExporter] = {}

    def of(self, member: Member) -> CheckpointExporter:
        """The exporter of a member that is not a finished `.cact`."""
        assert member.checkpoint is not None  # The settings give each member one of the two sources.
        exporter = self._by_path.get(member.checkpoint)
        if exporter is None:
            tokenizer = read_tokenizer(self._family)
            checkpoint = read_checkpoint(member.checkpoint)
            exporter = CheckpointExporter(checkpoint, self._family.settings, tokenizer)
            self._by_path[member.checkpoint] = exporter
        return exporter

    def export(self, member: Member, progress: Progress | None) -> bytes:
        """The bytes of any member."""
        if member.cact is not None:
            return bytes(read_container(member.cact).data)
        adapter = read_adapter(member.adapter) if member.adapter else None
        told = None if progress is None else functools.partial(progress, member.id)
        return self.of(member).export(adapter, told)


def read_tokenizer(family: Family) -> bytes:
    """The tokenizer blob for members that come from checkpoints, out of a `.model` or a `.cact`."""
    path = family.tokenizer
    if path is None:
        raise FamilyError(
            f"{family.path}: family.tokenizer: is missing, and checkpoints hold none; name the SentencePiece "
            "model that they were trained with, or a .cact that contains it",
            code="bad_family",
        )
    if path.suffix != ".cact":
        return pack_tokenizer(read_sentencepiece(path))
    blob = read_container(path).tokenizer_blob
    if blob is None:
        raise FamilyError(f"{path}: has no tokenizer inside", code="bad_family")
    return blob


class CheckpointExporter:
    """One checkpoint, ready to be written with or without an adapter merged in."""

    def __init__(self, checkpoint: Checkpoint, settings: FamilyTable, tokenizer: bytes) -> None:
        """Raises `FamilyError` (bad_depth, bad_checkpoint, unused_tensors, cact_bad_header)."""
        self._checkpoint = checkpoint
        self._settings = settings
        self._tokenizer = tokenizer
        self._layers = kept_layers(checkpoint, settings.layers)
        self._header = header_of(
            checkpoint.config, self._layers, kv_window=settings.kv_window, kv_bits=settings.kv_bits
        )
        self._check_header(self._header)
        self._encoded: dict[str, Blob] = {}
        self._checked: dict[str, Blob] = {}
        if settings.unused_tensors == "refuse":
            self._refuse_unused()

    @property
    def header(self) -> Header:
        """The header that every member exported from this checkpoint has (but for its tensor count)."""
        return self._header

    def check(self, adapter: Adapter | None = None) -> None:
        """Raise what `export` would raise: the same container is written, with zeros for all codes."""
        self._write(adapter, _unquantised, self._checked)

    def export(
        self, adapter: Adapter | None = None, progress: Callable[[int, int], None] | None = None
    ) -> bytes:
        """The container's bytes. Raises `FamilyError` (bad_checkpoint, bad_adapter, cact_*)."""
        return self._write(adapter, _cq, self._encoded, progress)

    def _write(
        self,
        adapter: Adapter | None,
        quantised: Quantiser,
        known: dict[str, Blob],
        progress: Callable[[int, int], None] | None = None,
    ) -> bytes:
        """`known` keeps, for the next member, the blobs that no adapter touches."""
        parameters = self.parameters(adapter)
        slots = list(model_slots(self._header))
        blobs = []
        for index, slot in enumerate(slots):
            blobs.append(self._blob(slot, parameters, quantised, known))
            if progress:
                progress(index + 1, len(slots))
        for field, values in self._head_fields(parameters, adapter):
            blobs.append(quantised(values) if field in HEAD_MATRICES else half_blob(values))
        blobs.append(raw_blob(self._tokenizer))
        try:
            return write_container(self._header, blobs)
        except ContainerError as error:
            raise self._unwritable(error) from None

    def parameters(self, adapter: Adapter | None) -> Parameters:
        """The checkpoint as it is exported, with the adapter merged in."""
        replaced = {} if adapter is None else merge(self._checkpoint, adapter)
        return Parameters(self._checkpoint, replaced, self._layers, adapter.path if adapter else None)

    def _heads(self, parameters: Parameters, adapter: Adapter | None) -> list[str]:
        """The heads to write.

        Adapters are not trained together with the confidence head, so upstream leaves it out of members that
        have one; `heads = "keep"` does not.
        """
        dropped = "confidence" if adapter and self._settings.heads == "drop-confidence" else None
        return [head for head in parameters.heads if head != dropped]

    def _values(self, slot: Slot, parameters: Parameters) -> Floats:
        values = parameters.array(slot.name)
        if values.shape != slot.shape:
            raise FamilyError(
                f"{self._checkpoint.path}: {parameters.key(slot.name)} gives {slot.name} the shape "
                f"{list(values.shape)}, must be {list(slot.shape)} by the checkpoint's config",
                code="bad_checkpoint",
            )
        self._require_storable(parameters.key(slot.name), values, parameters, is_cq=slot.kind is Kind.CQ)
        return values

    def _require_storable(self, key: str, values: Floats, parameters: Parameters, *, is_cq: bool) -> None:
        sizes = group_norms(values) if is_cq else np.abs(values)
        if not (sizes < HALF_LIMIT).all():  # False for what is not a number, too.
            what = "norm of 128 weights" if is_cq else "value"
            raise FamilyError(
                f"{parameters.source(key)}: {plain_name(key)}: has a {what} of {sizes.max():g}, must be "
                f"finite and below {HALF_LIMIT:g}, which fp16 can hold",
                code="cact_bad_value",
            )

    def _blob(self, slot: Slot, parameters: Parameters, quantised: Quantiser, known: dict[str, Blob]) -> Blob:
        shared = parameters.key(slot.name) not in parameters.replaced
        if shared and slot.name in known:
            return known[slot.name]
        if slot.kind is Kind.FP32:
            split = bool(self._checkpoint.config.ladder_widths)
            blob = single_blob(hada_permutation(slot.name, self._header.hada_n, split=split))
        else:
            values = self._values(slot, parameters)
            blob = half_blob(values) if slot.kind is Kind.FP16 else quantised(values)
        if shared:
            known[slot.name] = blob
        return blob

    def _head_fields(self, parameters: Parameters, adapter: Adapter | None) -> Iterator[tuple[str, Floats]]:
        """(field, values) in file order: the list of the heads, then each head's tensors."""
        heads = self._heads(parameters, adapter)
        if heads:
            yield "codes", np.array([HEAD_CODES[head] for head in heads], np.float32)
        for head in heads:
            for field, values in parameters.head(head):
                self._require_storable(HEAD_KEYS[head], values, parameters, is_cq=field in HEAD_MATRICES)
                yield field, values

    def _check_header(self, header: Header) -> None:
        try:
            packed = pack_header(dataclasses.replace(header, tensor_count=1))  # The writer sets the count.
            parse_header(memoryview(packed), "config")
        except ContainerError as error:
            raise self._unwritable(error) from None

    def _unwritable(self, error: ContainerError) -> FamilyError:
        return FamilyError(f"{self._checkpoint.path}: cannot be written as a .cact: {error}", code=error.code)

    def _refuse_unused(self) -> None:
        config = self._checkpoint.config
        everything = Parameters(self._checkpoint, {}, tuple(range(config.num_layers)))
        header = header_of(config, everything.layers, kv_window=0, kv_bits=None)
        self._check_header(header)
        used = {everything.key(slot.name) for slot in model_slots(header)}
        heads = tuple(f"{key}/" for key in HEAD_KEYS.values())
        unused = sorted(n for n in self._checkpoint.tensors if n not in used and not n.startswith(heads))
        if unused:
            raise FamilyError(
                f"{self._checkpoint.path}: its config has no use for {some_names(unused)}; a field that it "
                "leaves out counts as switched off, so name every field there, or lose the tensors on "
                'purpose with unused_tensors = "drop" in [family]',
                code="unused_tensors",
            )


def _cq(values: Floats) -> Blob:
    codes, norms = quantise(values, WEIGHT_BITS)
    return cq_blob(codes, norms, WEIGHT_BITS, values.shape[1])


def _unquantised(values: Floats) -> Blob:
    """A blob of the right size, in no time."""
    rows, width = len(values), padded(values.shape[1])
    codes, norms = np.zeros((rows, width), np.uint8), np.zeros((rows, width // GROUP), np.float16)
    return cq_blob(codes, norms, WEIGHT_BITS, values.shape[1])
