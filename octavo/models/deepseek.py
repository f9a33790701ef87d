"""DeepSeek V2 and V3, and Kimi K2: latent attention, and experts chosen in groups."""

from __future__ import annotations

from collections.abc import Mapping

from octavo.layers import (
    Block,
    CausalLM,
    ExpertSpec,
    FirstOf,
    HeadRows,
    LatentSelfAttention,
    LatentSpec,
    ModelSpec,
    Routing,
    SequentialBlock,
    Slices,
    StoredTensor,
    WeightSource,
    standard_mlp,
    standard_norm,
    standard_weights,
)
from octavo.layers.rope import yarn_magnitude
from octavo.models.config_reader import Config, ConfigurationError

V2, V3 = "DeepseekV2ForCausalLM", "DeepseekV3ForCausalLM"
# How the files name the ways of choosing experts.
GREEDY, IN_GROUPS, CORRECTED = "greedy", "group_limited_greedy", "noaux_tc"


class DeepSeek(CausalLM):
    """A decoder of latent attention; the first blocks have MLPs, the others experts."""

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__(spec)
        behind = range(spec.layers, spec.layers + spec.num_drafting)
        self.ignored = (
            "model.layers.*.self_attn.rotary_emb.inv_freq",
            *(f"model.layers.{layer}.*" for layer in behind),
        )

    def block(self, layer: int) -> Block:
        spec = self.spec
        attention, mlp = LatentSelfAttention(spec, layer), standard_mlp(spec, layer)
        return SequentialBlock(standard_norm(spec), attention, standard_norm(spec), mlp)

    def weights(self) -> Mapping[str, WeightSource]:
        sizes = self.spec.latent
        assert sizes is not None
        attention, mlp = "model.layers.*.self_attn.", "model.layers.*.mlp."
        one, shared = mlp + "experts.@.", mlp + "shared_experts."
        both, per_head = attention + "kv_b_proj", sizes.still + sizes.value
        rows = _turning_first(self.spec.heads, sizes)
        return {
            **standard_weights(self.spec),
            "blocks.*.attn.q": StoredTensor(attention + "q_proj", rows),
            "blocks.*.attn.q.shorten": attention + "q_a_proj",
            "blocks.*.attn.q.norm": attention + "q_a_layernorm",
            "blocks.*.attn.q.widen": StoredTensor(attention + "q_b_proj", rows),
            "blocks.*.attn.kv": attention + "kv_a_proj_with_mqa",
            "blocks.*.attn.kv_norm": attention + "kv_a_layernorm",
            # GGUF has them apart, as they are used.
            "blocks.*.attn.keys": FirstOf(
                (
                    HeadRows(both, per_head, 0, sizes.still, transposed=True),
                    attention + "k_b_proj",
                )
            ),
            "blocks.*.attn.values": FirstOf(
                (HeadRows(both, per_head, sizes.still, per_head), attention + "v_b_proj")
            ),
            "blocks.*.mlp.router": mlp + "gate",
            "blocks.*.mlp.correction": mlp + "gate.e_score_correction_bias",
            "blocks.*.mlp.experts.gate_up_weight": FirstOf(
                (
                    Slices((one + "gate_proj.weight", one + "up_proj.weight")),
                    mlp + "experts.gate_up_proj",
                )
            ),
            "blocks.*.mlp.experts.down_weight": FirstOf(
                (Slices((one + "down_proj.weight",)), mlp + "experts.down_proj")
            ),
            "blocks.*.mlp.shared.gate_up": (shared + "gate_proj", shared + "up_proj"),
            "blocks.*.mlp.shared.down": shared + "down_proj",
        }

    @staticmethod
    def read(config: Config) -> ModelSpec:
        """Read the sizes of the latents and of the experts, and the rotation."""
        kind, layers = config.architecture(V3), config.layers()
        sizes = LatentSpec(
            latent=config.positive("kv_lora_rank"),
            queries=config.integer("q_lora_rank", 0),
            turning=config.positive("qk_rope_head_dim"),
            still=config.positive("qk_nope_head_dim"),
            value=config.positive("v_head_dim"),
        )
        interleaved = kind == V2 or config.boolean("rope_interleave", True)
        rope = config.rope(sizes.turning, interleaved=interleaved)
        return config.standard_spec(
            kv_heads=1,
            attention_scale=(sizes.turning + sizes.still) ** -0.5 * _sharpening(config),
            ropes=(rope,) * layers,
            latent=sizes,
            experts=_experts(config, kind, layers),
            num_drafting=config.integer("num_nextn_predict_layers", 0),
            head_dim=sizes.turning + sizes.latent,
        )


def _turning_first(heads: int, sizes: LatentSpec) -> tuple[int, ...]:
    """Return the order of rows that puts the part that rotates first in each head's queries."""
    width = sizes.turning + sizes.still
    inside = (*range(sizes.still, width), *range(sizes.still))
    return tuple(head * width + row for head in range(heads) for row in inside)


def _sharpening(config: Config) -> float:
    """Return the factor by which a stretched context sharpens all scores."""
    stated = config.rotation()
    over = stated.number("mscale_all_dim", 0.0)
    if not over or stated.string("rope_type", stated.string("type", "default")) == "default":
        return 1.0
    return yarn_magnitude(stated.above("factor", 0.0), over) ** 2


def _experts(config: Config, kind: str, layers: int) -> tuple[ExpertSpec | None, ...]:
    """Read what follows the first dense layers."""
    if not config.has("n_routed_experts"):
        return ()
    if config.integer("moe_layer_freq", 1) != 1:
        raise ConfigurationError(
            f"{config.name_of('moe_layer_freq')} must be 1, is {config.integer('moe_layer_freq')}: "
            "layers with and without experts in turn are not supported"
        )
    count, top_k = config.experts("n_routed_experts")
    ffn = config.positive("moe_intermediate_size")
    ways = (GREEDY, IN_GROUPS, CORRECTED)
    way = config.choice("topk_method", ways, GREEDY if kind == V2 else CORRECTED)
    usual = "softmax" if kind == V2 else "sigmoid"
    scores = config.choice("scoring_func", ("softmax", "sigmoid"), usual)
    groups, top_groups = (1, 1) if way == GREEDY else _groups(config, count, top_k)
    experts = ExpertSpec(
        count,
        ffn,
        Routing(
            top_k,
            scores="softmax" if scores == "softmax" else "sigmoid",
            normalise=_normalises(config, kind),
            scale=config.number("routed_scaling_factor", 1.0),
            groups=groups,
            top_groups=top_groups,
            group_best=min(2, count // groups) if way == CORRECTED else 1,
        ),
        shared_ffn=ffn * config.integer("n_shared_experts", 0),
        shared_gate=False,
        correction=way == CORRECTED,
    )
    dense = config.integer("first_k_dense_replace", 0)
    return tuple(None if layer < dense else experts for layer in range(layers))


def _normalises(config: Config, kind: str) -> bool:
    """Read whether the weights of the chosen experts are divided by their sum."""
    normalises = config.boolean("norm_topk_prob", kind == V3)
    if normalises and kind == V2:
        # The reference ignores it, DeepSeek's own code divides and leaves the scale out, and others
        # divide and scale. None of the published models has it.
        raise ConfigurationError(
            f"{config.name_of('norm_topk_prob')} true is not supported for {V2}, since programs "
            "that read these models differ in what it does; set it to false if the model was "
            "trained without it"
        )
    return normalises


def _groups(config: Config, count: int, top_k: int) -> tuple[int, int]:
    """Read into how many groups the experts are divided, and how many of these a token passes."""
    groups, top_groups = config.positive("n_group", 1), config.positive("topk_group", 1)
    if count % groups or top_groups > groups or top_groups * (count // groups) < top_k:
        raise ConfigurationError(
            f"{config.name_of('n_group')} {groups} and {config.name_of('topk_group')} {top_groups} "
            f"do not fit {count} experts, of which a token passes {top_k}: groups must be equal, "
            "and those that are chosen must have as many experts"
        )
    return groups, top_groups
