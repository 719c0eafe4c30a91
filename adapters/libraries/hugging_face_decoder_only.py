"""The adapters of Hugging Face transformers for decoder-only models: Llama, Mistral, Qwen3 and Gemma 2.

hugging-face-llama    modeling_llama.py: norms before each block, SwiGLU, scaling of Llama 3.1
hugging-face-mistral  modeling_mistral.py: the same with linear scaling, masks and a cache of a window of 4096
hugging-face-qwen3    modeling_qwen3.py: norms of queries and keys within each head, before they are turned
hugging-face-gemma-2  modeling_gemma2.py: norms before and after each block with 1 + gamma, GEGLU, YaRN, capped scores

Nothing is downloaded: a small configuration makes the layers and models, without numbers, and the call gives them.
Attention is their own ("eager"), which returns weights. A layer gets the additive mask that its model makes.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import Any, Final, NamedTuple

import torch
import transformers
from torch import Tensor, nn
from torch.func import functional_call
from transformers import DynamicCache
from transformers.masking_utils import causal_mask_function, eager_mask, sliding_window_causal_mask_function
from transformers.models.gemma2 import modeling_gemma2
from transformers.models.llama import modeling_llama
from transformers.models.mistral import modeling_mistral
from transformers.models.qwen3 import modeling_qwen3

from goldformer.adapters.layouts import Names, additive_mask, four_axes_mask, map_state, nest_names

Params = Mapping[str, Tensor]

_NETWORK: Final = {"w_gate": "gate_proj.weight", "w_up": "up_proj.weight", "w_down": "down_proj.weight"}
_LAYER: Final = {
    **{f"w_{role}": f"self_attn.{role}_proj.weight" for role in "qkvo"},
    **nest_names(_NETWORK, "feed_forward", "mlp"),
    "norm_1.gamma": "input_layernorm.weight",
}


class LayerResult(NamedTuple):
    """The output of a layer, what its second block starts from, and the weights of its attention."""

    output: Tensor
    attended: Tensor
    weights: Tensor


class ModelState(NamedTuple):
    """All ids so far, and the keys and values of each layer."""

    ids: Tensor
    cache: DynamicCache


@dataclass(frozen=True)
class Family:
    """The classes of one family of models; its methods are the components that they have."""

    NAME: str
    CONVENTIONS: Mapping[str, str]
    module: ModuleType
    prefix: str
    norms: Names
    before_network: str
    settings: Mapping[str, Any]
    scaling: Mapping[str, Any]
    caps_scores: bool
    has_biases: bool

    ARRAYS = "torch"
    VERSION = transformers.__version__

    def rms_norm(self, x: Tensor, *, params: Params) -> Tensor:
        """Call the norm of the family, with the eps of its configuration."""
        with torch.device("meta"):
            norm = self._find("RMSNorm")(x.shape[-1], eps=self.settings["rms_norm_eps"])
        output: Tensor = functional_call(norm, map_state({"gamma": "weight"}, params, norm), (x,))
        return output

    def rotary_embedding(
        self,
        x: Tensor,
        positions: Tensor,
        *,
        base: float = 10000.0,
        scaling_factor: float | None = None,
        original_length: int | None = None,
    ) -> Tensor:
        """Call apply_rotary_pos_emb with the cosines and sines of the family's rotary embedding."""
        rope = {}
        if scaling_factor is not None:
            length = 1 if original_length is None else original_length
            rope = {**self.scaling, "factor": scaling_factor}
            rope |= {} if rope["rope_type"] == "linear" else {"original_max_position_embeddings": length}
            # It warns of a model that is not longer than before.
            rope["max_position_embeddings"] = max(length + 1, round(length * scaling_factor))
        rows = x.reshape(-1, 1, *x.shape[-2:])
        places = positions.expand(x.shape[:-1]).reshape(-1, x.shape[-2])
        config = self._configure(x.shape[-1], 1, 1, x.shape[-1], base, **rope)
        cosine, sine = self._find("RotaryEmbedding")(config)(x, places)
        turned: Tensor = self.module.apply_rotary_pos_emb(rows, rows, cosine, sine)[0]
        return turned.reshape(x.shape)

    def gated_feed_forward(self, x: Tensor, *, params: Params) -> dict[str, Tensor]:
        """Call the MLP of the family; return output and, from its three maps, hidden, gate and up."""
        width, d_ff = params["w_gate"].shape
        settings = self._list_biases(params)
        # It refuses heads that cannot turn, though an MLP has none.
        config = self._configure(width, 1, 1, 2, d_ff=d_ff, **settings)
        with torch.device("meta"):
            network = self._find("MLP")(config)
        found: dict[str, Tensor] = {}
        network.gate_proj.register_forward_hook(lambda _module, _args, made: found.update(gate=made))
        network.up_proj.register_forward_hook(lambda _module, _args, made: found.update(up=made))
        network.down_proj.register_forward_pre_hook(lambda _module, args: found.update(hidden=args[0]))
        output = functional_call(network, map_state(_NETWORK, params, network), (x,))
        return {"output": output, **found}

    def grouped_query_attention(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        mask: Tensor | None = None,
        *,
        scale: float | None = None,
        softcap: float | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Call the family's eager_attention_forward; return output and weights."""
        if softcap is not None and not self.caps_scores:
            raise NotImplementedError(f"{self.prefix} does not cap scores")
        added = None if mask is None else _make_additive(four_axes_mask(mask), query)
        return self._attend(query, key, value, added, scale, **({"softcap": softcap} if self.caps_scores else {}))

    def cached_attention(
        self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None, state: DynamicCache | None = None
    ) -> tuple[Tensor, DynamicCache]:
        """Add keys and values to the cache of the family, and attend under the mask that eager_mask makes for it."""
        config = self._configure(query.shape[1], 1, 1, 2)
        cache = DynamicCache(config=config) if state is None else state
        earlier, (so_far, hidden) = cache.get_seq_length(), cache.get_mask_sizes(query.shape[2], 0)
        window = self.settings.get("sliding_window")
        added = eager_mask(
            len(query), query.shape[2], so_far, q_offset=earlier, kv_offset=hidden, device=query.device,
            dtype=query.dtype, attention_mask=None if mask is None else mask.flatten(1),
            mask_function=sliding_window_causal_mask_function(window) if window else causal_mask_function,
        )  # fmt: skip
        keys, values = cache.update(key, value, 0)
        return self._attend(query, keys, values, added, None)[0], cache

    def decoder_only_layer(
        self,
        x: Tensor,
        mask: Tensor | None = None,
        *,
        num_heads: int,
        num_kv_heads: int,
        base: float = 10000.0,
        params: Params,
    ) -> LayerResult:
        """Call the decoder layer of the family; return output, attended and weights."""
        config = self._configure_layer(params, num_heads, num_kv_heads, base)
        with torch.device("meta"):
            layer = self._find("DecoderLayer")(config, layer_idx=0).eval()
        found: dict[str, Tensor] = {}
        layer.self_attn.register_forward_hook(lambda _module, _args, made: found.update(weights=made[1]))
        layer.get_submodule(self.before_network).register_forward_pre_hook(
            lambda _module, args: found.update(attended=args[0])
        )
        seq = x.shape[1]
        causal = torch.ones(1, 1, seq, seq, dtype=torch.bool, device=x.device).tril()
        rotary = self._find("RotaryEmbedding")(config)
        options = {
            "attention_mask": _make_additive(causal if mask is None else causal & four_axes_mask(mask), x),
            "position_embeddings": rotary(x, torch.arange(seq, device=x.device)[None]),
        }
        output = functional_call(layer, map_state({**_LAYER, **self.norms}, params, layer), (x,), options)
        return LayerResult(output, found["attended"], found["weights"])

    def decoder_only_model(
        self,
        ids: Tensor,
        *,
        num_heads: int,
        num_kv_heads: int,
        num_layers: int,
        base: float = 10000.0,
        pad_id: int | None = None,
        params: Params,
    ) -> dict[str, Tensor]:
        """Call the model with a head, which makes its masks from the padding of the ids; return all outputs."""
        sizes: dict[str, Any] = {
            "num_heads": num_heads,
            "num_kv_heads": num_kv_heads,
            "num_layers": num_layers,
            "base": base,
        }
        result = self._run_model(params, ids, ids, pad_id, None, **sizes)
        return {"logits": result.logits, "decoded": result.hidden_states[-1], "embedded": result.hidden_states[0]}

    def cached_model(
        self,
        ids: Tensor,
        state: ModelState | None = None,
        *,
        num_heads: int,
        num_kv_heads: int,
        num_layers: int,
        base: float = 10000.0,
        pad_id: int | None = None,
        params: Params,
    ) -> tuple[Tensor, ModelState]:
        """Call the model with the cache of the family, and with a mask of all ids so far; return logits and state."""
        so_far = ids if state is None else torch.cat([state.ids, ids], dim=1)
        cache = None if state is None else state.cache
        sizes: dict[str, Any] = {
            "num_heads": num_heads,
            "num_kv_heads": num_kv_heads,
            "num_layers": num_layers,
            "base": base,
        }
        result = self._run_model(params, ids, so_far, pad_id, cache, use_cache=True, **sizes)
        return result.logits, ModelState(so_far, result.past_key_values)

    def _run_model(
        self,
        params: Params,
        ids: Tensor,
        so_far: Tensor,
        pad_id: int | None,
        cache: DynamicCache | None,
        *,
        use_cache: bool = False,
        num_heads: int,
        num_kv_heads: int,
        num_layers: int,
        base: float,
    ) -> Any:
        """Return the result of the model for ids that follow those of a cache."""
        first = {name.removeprefix("layers.0."): value for name, value in params.items()}
        more = {"num_layers": num_layers, "vocab_size": len(params["table"])}
        config = self._configure_layer(first, num_heads, num_kv_heads, base, **more)
        with torch.device("meta"):
            model = self._find("ForCausalLM")(config).eval()
        model.model.rotary_emb = self._find("RotaryEmbedding")(config)
        embedding = model.model.embed_tokens
        if hasattr(embedding, "embed_scale"):
            embedding.embed_scale = torch.tensor(embedding.scalar_embed_scale)
        head: dict[str, str | tuple[str, ...]] = {"table": "model.embed_tokens.weight", "w_vocab": "lm_head.weight"}
        if config.tie_word_embeddings:
            head = {"table": ("model.embed_tokens.weight", "lm_head.weight")}
        names = {
            **nest_names({**_LAYER, **self.norms}, "layers.*", "model.layers.*"),
            **head,
            "norm.gamma": "model.norm.weight",
        }
        arguments = {
            "input_ids": ids,
            "attention_mask": None if pad_id is None else so_far != pad_id,
            "past_key_values": cache,
            "output_hidden_states": True,
            "use_cache": use_cache,
        }
        return functional_call(model, map_state(names, params, model), (), arguments)

    def _find(self, name: str) -> Any:
        """Return a class of the family, such as LlamaRMSNorm."""
        return getattr(self.module, f"{self.prefix}{name}")

    def _attend(
        self, query: Tensor, key: Tensor, value: Tensor, added: Tensor | None, scale: float | None, **more: Any
    ) -> tuple[Tensor, Tensor]:
        attention = nn.Module().eval()
        attention.num_key_value_groups = query.shape[1] // key.shape[1]  # type: ignore[assignment]
        scaling = query.shape[-1] ** -0.5 if scale is None else scale
        output, weights = self.module.eager_attention_forward(
            attention, query, key, value, added, scaling=scaling, **more
        )
        return output.transpose(1, 2), weights

    def _configure_layer(self, params: Params, num_heads: int, num_kv_heads: int, base: float, **more: Any) -> Any:
        """Return the configuration of a layer with these parameters."""
        d_model, d_ff = params["feed_forward.w_gate"].shape
        head_dim = params["w_q"].shape[1] // num_heads
        settings = self._list_biases(params)
        return self._configure(d_model, num_heads, num_kv_heads, head_dim, base, d_ff=d_ff, **settings, **more)

    def _list_biases(self, params: Params) -> dict[str, bool]:
        """Return the settings that give the maps of an attention and of a network a bias."""
        if not self.has_biases:
            return {}
        attention, network = (("b_q", "b_k", "b_v", "b_o"), ("b_gate", "b_up", "b_down"))
        last = {name.rpartition(".")[2] for name in params}
        return {"attention_bias": bool(last & {*attention}), "mlp_bias": bool(last & {*network})}

    def _configure(
        self,
        d_model: int,
        num_heads: int,
        num_kv_heads: int,
        head_dim: int,
        base: float = 10000.0,
        d_ff: int = 1,
        num_layers: int = 1,
        **more: Any,
    ) -> Any:
        """Return a configuration; NotImplementedError if the heads do not divide d_model, which it refuses."""
        if num_heads > 0 and d_model % num_heads:
            raise NotImplementedError(
                f"{self.prefix}'s d_model, {d_model}, must be a multiple of its {num_heads} heads"
            )
        rope = {name: more.pop(name) for name in [*more] if name in _ROPE}
        return self._find("Config")(
            hidden_size=d_model, intermediate_size=d_ff, num_attention_heads=num_heads, head_dim=head_dim,
            num_key_value_heads=num_kv_heads, rope_parameters={"rope_type": "default", "rope_theta": base, **rope},
            pad_token_id=None, bos_token_id=None, eos_token_id=None, attn_implementation="eager",
            num_hidden_layers=num_layers, **self._fit_attention(head_dim, num_layers), **self.settings, **more,
        )  # fmt: skip

    def _fit_attention(self, head_dim: int, num_layers: int) -> dict[str, Any]:
        """Return the settings of Gemma 2 that make the scale 1/√d_k, and layers without a window."""
        if not self.caps_scores:
            return {}
        return {"query_pre_attn_scalar": head_dim, "layer_types": ["full_attention"] * num_layers}


_ROPE: Final = ("rope_type", "factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings")


def _make_additive(mask: Tensor, like: Tensor) -> Tensor:
    """Return the mask that the models make: 0 where a query may attend, the lowest number elsewhere."""
    additive: Tensor = additive_mask(mask, like.dtype, fill=torch.finfo(like.dtype).min)
    return additive


llama: Final = Family(
    NAME="hugging-face-llama",
    CONVENTIONS={
        "rms_norm_eps": "1e-5",
        "rope_pairing": "half",
        "rope_scaling": "llama3",
        "cache_state": "consumed",
    },
    module=modeling_llama,
    prefix="Llama",
    norms={"norm_2.gamma": "post_attention_layernorm.weight"},
    before_network="post_attention_layernorm",
    settings={"rms_norm_eps": 1e-5, "hidden_act": "silu", "tie_word_embeddings": False},
    scaling={"rope_type": "llama3", "low_freq_factor": 1.0, "high_freq_factor": 4.0},
    caps_scores=False,
    has_biases=True,
)

mistral: Final = Family(
    NAME="hugging-face-mistral",
    CONVENTIONS={"rope_pairing": "half", "biases": "none", "cache_state": "consumed"},
    module=modeling_mistral,
    prefix="Mistral",
    norms={"norm_2.gamma": "post_attention_layernorm.weight"},
    before_network="post_attention_layernorm",
    settings={"rms_norm_eps": 1e-6, "hidden_act": "silu", "tie_word_embeddings": False, "sliding_window": 4096},
    scaling={"rope_type": "linear"},
    caps_scores=False,
    has_biases=False,
)

qwen3: Final = Family(
    NAME="hugging-face-qwen3",
    CONVENTIONS={"rope_pairing": "half", "biases": "none", "qk_norm": "per_head", "cache_state": "consumed"},
    module=modeling_qwen3,
    prefix="Qwen3",
    norms={
        "norm_2.gamma": "post_attention_layernorm.weight",
        "gamma_q": "self_attn.q_norm.weight",
        "gamma_k": "self_attn.k_norm.weight",
    },
    before_network="post_attention_layernorm",
    settings={"rms_norm_eps": 1e-6, "hidden_act": "silu", "tie_word_embeddings": False},
    scaling={"rope_type": "linear"},
    caps_scores=False,
    has_biases=False,
)

gemma_2: Final = Family(
    NAME="hugging-face-gemma-2",
    CONVENTIONS={
        "rms_norm_weight": "one_plus_w",
        "rope_pairing": "half",
        "rope_scaling": "yarn",
        "gate_activation": "gelu_tanh",
        "biases": "none",
        "block_order": "sandwich",
        "embedding_scale": "sqrt_d_model",
        "output_layer": "tied",
        "cache_state": "consumed",
    },
    module=modeling_gemma2,
    prefix="Gemma2",
    norms={
        "post_norm_1.gamma": "post_attention_layernorm.weight",
        "norm_2.gamma": "pre_feedforward_layernorm.weight",
        "post_norm_2.gamma": "post_feedforward_layernorm.weight",
    },
    before_network="pre_feedforward_layernorm",
    settings={
        "rms_norm_eps": 1e-6,
        "hidden_activation": "gelu_pytorch_tanh",
        "tie_word_embeddings": True,
        # Only the scores of grouped_query_attention are capped, where a call says so.
        "attn_logit_softcapping": None,
        "final_logit_softcapping": None,
    },
    scaling={"rope_type": "yarn"},
    caps_scores=True,
    has_biases=False,
)
