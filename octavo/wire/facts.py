"""The facts about a loaded model that an engine reports once, when it is ready."""

from __future__ import annotations

from msgspec import Struct, field

from octavo.model_facts import GenerationDefaults, PoolingFacts


class EngineFacts(Struct, frozen=True):
    """Facts that an engine reports when it is ready."""

    name: str  # what the user typed
    architecture: str
    directory: str  # where the model's files are, with the tokenizer's
    weights: tuple[str, ...]
    vocabulary: int  # rows of the head; ids beyond it do not exist
    max_model_len: int
    longest_tokens: int  # of one sequence: max_model_len, or what the KV cache holds
    block_size: int
    num_blocks: int
    max_num_seqs: int
    max_num_waiting: int
    max_waiting_tokens: int
    dtype: str
    generation: GenerationDefaults = field(default_factory=GenerationDefaults)
    memory_bytes: dict[str, int] = field(default_factory=dict)  # by purpose
    start_seconds: tuple[tuple[str, float], ...] = ()  # the parts of the start-up, in order
    instruction_set: str = ""  # whose kernels compute; "" where PyTorch chooses
    accumulation_order: str = ""  # of sums, on which bits depend
    pooling: PoolingFacts = field(default_factory=PoolingFacts)
    num_parameters: int = 0  # values of all weights
    weight_type: str = ""  # of most of their bytes, as they are stored
    fair_share: bool = False  # owners of requests share the engine
    device: str = "cpu"  # where it computes
    kv_groups: tuple[tuple[str, int | None], ...] = ()  # what each keeps, and its window

    @property
    def kv_tokens(self) -> int:
        """The tokens whose KV the blocks hold, of one group of layers; one block is never used."""
        return max(0, self.num_blocks - 1) * self.block_size
