"""What must be true before a pretraining run starts, and what its user should know.

In: a config and the run's folder, later the prepared store. Out: nothing, or a UserError; or remarks. Starts nothing
and knows no Ray.
"""

from pathlib import Path

from data.batches import PAIRS
from data.config import UserError
from data.corpus import find_files
from data.prepare import check_segmenter
from data.store import Store
from data.tokenizer import describe_tokenizer
from model.config import Encoder
from model.encoder import check_folder
from model.families import FAMILIES, family_of, longest_row, setting
from orchestration import checkpoint
from orchestration.config import PRETRAIN_SECTIONS, Config
from orchestration.run import check_identity, check_storage, summary_of


def check(config: Config, run: Path) -> None:
    """All that can be checked without Ray. Raises UserError."""
    check_storage(config)
    find_files(config.corpus)
    check_identity(run, config, PRETRAIN_SECTIONS)
    check_packing(config)
    check_segmenter(config.rows)
    vocabulary = None
    if config.tokenizer.path is not None:
        vocabulary = describe_tokenizer(Path(config.tokenizer.path))["vocab_size"]
    if config.encoder.init is not None:
        try:
            folder = check_folder(config.encoder.init, config.encoder.pickled)
        except ValueError as error:
            raise UserError(f"encoder.init={config.encoder.init}: {error}") from None
        for field in family_of(folder).names:
            given, there = getattr(config.encoder, field), setting(folder, field)
            if field == "max_position_embeddings":
                there = longest_row(folder)
            if given not in (Encoder.model_fields[field].default, there):
                raise UserError(f"encoder.{field}={given}: the folder in encoder.init has {there}; leave this key out")
        if config.rows.packing in PAIRS and folder.type_vocab_size < 2:
            raise UserError(
                f"rows.packing={config.rows.packing}: encoder.init knows one segment; give full_sentences or document"
            )
        positions = longest_row(folder)
        if config.rows.length > positions:
            raise UserError(f"rows.length={config.rows.length}: encoder.init reads at most {positions} tokens")
        if vocabulary is not None and folder.vocab_size < vocabulary:
            raise UserError(
                f"tokenizer.path={config.tokenizer.path}: it has {vocabulary} tokens, the encoder in encoder.init "
                f"{folder.vocab_size}; give tokenizer.path={config.encoder.init}"
            )
    step, manifest, _ = checkpoint.newest(run)
    if manifest is not None and summary_of(run) is None:
        for key, old, new in (
            ("scaling.workers", manifest["world_size"], config.scaling.workers),
            ("zero.stage", manifest["zero_stage"], config.zero.stage),
        ):
            if old != new:
                raise UserError(f"{key}={new}: the checkpoint at step {step} was saved with {old}; give {key}={old}")


def check_packing(config: Config) -> None:
    """Raise UserError where the encoder's family cannot read the rows that are asked for."""
    family, packing = FAMILIES[config.encoder.family], config.rows.packing
    can_not = None
    if packing == "packed" and not family.packs:
        can_not = "keep attention and positions inside each of several documents"
    if packing in PAIRS and not family.segments:
        can_not = "tell two segments apart"
    if can_not:
        raise UserError(
            f"rows.packing={packing}: a {config.encoder.family} encoder cannot {can_not}; give full_sentences, "
            f"document or line, or another encoder.family"
        )


def remarks(config: Config, store: Store) -> list[str]:
    """What a user should know of a corpus that is small for its run."""
    rows, pretrain, workers = store.train.num_rows, config.pretrain, config.scaling.workers
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
