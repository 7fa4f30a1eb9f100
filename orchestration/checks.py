"""What must be true before a pretraining run starts, and what its user should know.

In: a config and the run's folder, later the prepared store. Out: nothing, or a UserError; or remarks. Starts nothing
and knows no Ray.
"""

from pathlib import Path

from data.batches import PAIRS
from data.config import UserError
from data.corpus import find_files
from data.prepare import check_segmenter
from data.storage import place
from data.store import Store
from data.tokenizer import describe_tokenizer
from model.config import Encoder
from model.encoder import check_folder, encoder_config
from model.families import FAMILIES, Family, family_of, longest_row, reads_segments, setting
from model.objectives.catalogue import check_objective
from model.opening import check_weights
from orchestration.config import Config
from orchestration.identity import PRETRAIN_SECTIONS
from orchestration.run import check_identity, check_storage
from orchestration.weights import fetch_weights, located


def check(config: Config, run: Path) -> None:
    """All that can be checked without Ray. Raises UserError."""
    check_storage(config)
    find_files(config.corpus)
    check_identity(run, config, PRETRAIN_SECTIONS)
    check_model(config)
    check_segmenter(config.rows)
    if config.tokenizer.path is not None:
        describe_tokenizer(Path(config.tokenizer.path))
    if config.pretrain.precision == "fp16" and not config.scaling.gpus_per_worker:
        raise UserError(
            "pretrain.precision=fp16: no worker asks for a GPU (scaling.gpus_per_worker=0), and CPUs do not train in "
            "fp16; give pretrain.precision=bf16 or fp32, or scaling.gpus_per_worker=1"
        )


def check_model(config: Config) -> None:
    """Raise UserError where encoder, objective and rows do not go together, as far as files without weights tell."""
    encoder, objective = config.encoder, config.objective
    readers = [FAMILIES[encoder.family]]
    try:
        here = located(config)
        fetch_weights(here)
        if encoder.init is None:
            encoder_config(encoder, {"vocab_size": config.tokenizer.vocab_size, "pad_id": 0})
        else:
            readers = [_check_init(config)]
        if objective.teacher is not None:
            readers.append(_check_teacher(objective.teacher))
        check_objective(here.objective, here.encoder)
    except ValueError as error:
        raise UserError(str(error)) from None
    packing = config.rows.packing
    if objective.packing not in (None, packing):
        raise UserError(
            f"objective.name={objective.name}: it guesses about pairs, rows.packing={packing} makes none; give "
            f"rows.packing={objective.packing}"
        )
    for family, key in zip(readers, ("encoder.family", "objective.teacher"), strict=False):
        can_not = None
        if packing == "packed" and not family.packs:
            can_not = "keep attention and positions inside each of several documents"
        if packing in PAIRS and not family.segments and key == "encoder.family":
            can_not = "tell two segments apart"
        if can_not:
            raise UserError(
                f"rows.packing={packing}: a {family.model_type} encoder cannot {can_not}; give full_sentences, "
                f"document or line, or another {key}"
            )


def _check_teacher(teacher: str) -> Family:
    """The family of the folder in objective.teacher. Raises ValueError where it is none."""
    try:
        config = check_folder(place(teacher))
        check_weights(place(teacher))
        return family_of(config)
    except ValueError as error:
        raise ValueError(f"objective.teacher={teacher}: {str(error).removeprefix(f'{place(teacher)}: ')}") from None


def _check_init(config: Config) -> Family:
    """The family of the folder in encoder.init. Raises ValueError, one line, where it does not fit the config."""
    encoder = config.encoder
    try:
        folder = check_folder(place(str(encoder.init)), encoder.pickled)
        check_weights(place(str(encoder.init)))
    except ValueError as error:
        told = str(error).removeprefix(f"{place(str(encoder.init))}: ")
        raise ValueError(f"encoder.init={encoder.init}: {told}") from None
    family = family_of(folder)
    if "family" in encoder.model_fields_set and FAMILIES[encoder.family].model_type != family.model_type:
        raise ValueError(
            f"encoder.family={encoder.family}: the folder in encoder.init is a {family.model_type} model; leave it out"
        )
    for field in family.names:
        given, there = getattr(encoder, field), setting(folder, field)
        if field == "max_position_embeddings":
            there = longest_row(folder)
        if given not in (Encoder.model_fields[field].default, there):
            raise ValueError(f"encoder.{field}={given}: the folder in encoder.init has {there}; leave this key out")
    if config.rows.packing in PAIRS and family.segments and not reads_segments(folder):
        raise ValueError(
            f"rows.packing={config.rows.packing}: encoder.init knows one segment; give full_sentences or document"
        )
    if config.rows.longest > (positions := longest_row(folder)):
        raise ValueError(f"rows.length={config.rows.longest}: encoder.init reads at most {positions} tokens")
    tokens = describe_tokenizer(Path(str(config.tokenizer.path)))["vocab_size"]
    if folder.vocab_size < tokens:
        raise ValueError(
            f"tokenizer.path={config.tokenizer.path}: it has {tokens} tokens, the encoder in encoder.init "
            f"{folder.vocab_size}; give tokenizer.path={encoder.init}"
        )
    return family


def remarks(config: Config, store: Store) -> list[str]:
    """What a user should know of a corpus that is small for its run."""
    rows, pretrain, workers = store.train.num_rows, config.pretrain, config.scaling.max_workers
    told = []
    if rows < pretrain.global_batch:
        told.append(
            f"{rows} rows are fewer than pretrain.global_batch={pretrain.global_batch}: every step trains on all of "
            f"them; filler rows of weight zero make up the rest"
        )
    if rows < workers:
        told.append(f"{rows} rows are fewer than scaling.workers={workers}: some workers train on filler rows only")
    if not store.held_out.num_rows:
        told.append("no document is held out: nothing to evaluate on")
    return told
