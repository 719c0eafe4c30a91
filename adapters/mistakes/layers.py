"""Mistakes in the feed-forward network, in layer normalisation, and in the layers and stacks made of them."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from goldformer.adapters.layouts import part
from goldformer.adapters.mistakes.differentiation import DifferentiatedTextbook as Textbook
from goldformer.adapters.mistakes.registry import mistake
from goldformer.adapters.textbook_checks import Array
from goldformer.adapters.textbook_layers import Params, SubLayer

# Feed-forward network


@mistake("ffn-no-relu")
class NoRelu(Textbook):
    """There is no function between the two linear maps."""

    def activation(self, x: Array) -> Array:
        return x


@mistake("ffn-gelu")
class Gelu(Textbook):
    """GELU stands in the place of ReLU, in its exact form."""

    def activation(self, x: Array) -> Array:
        at = x / math.sqrt(2)
        erf = np.vectorize(math.erf, otypes=[at.real.dtype])(at.real)
        if np.iscomplexobj(at):
            # math.erf takes real numbers alone: of a complex step its derivative tells the rest.
            erf = erf + (at - at.real) * np.exp(-np.square(at.real)) * 2 / math.sqrt(math.pi)
        return np.asarray(x * (1 + erf) / 2)


@mistake("ffn-output-relu")
class OutputRelu(Textbook):
    """A second ReLU follows the second map."""

    def feed_forward(self, x: Array, *, params: Params) -> tuple[Array, Array]:
        output, hidden = super().feed_forward(x, params=params)
        return np.maximum(output, 0), hidden


@mistake("ffn-bias-missing")
class FeedForwardBiasMissing(Textbook):
    """Neither map adds its bias."""

    def project(self, x: Array, params: Params, role: str) -> Array:
        return self.affine(x, params[f"w_{role}"], None) if role in ("1", "2") else super().project(x, params, role)


@mistake("ffn-no-dff")
class HiddenAsWideAsTheModel(Textbook):
    """The hidden layer has only the first d_model of its d_ff channels."""

    def feed_forward(self, x: Array, *, params: Params) -> tuple[Array, Array]:
        width = x.shape[-1]
        narrow = {"w_1": params["w_1"][:, :width], "w_2": params["w_2"][:width]}
        narrow |= {name: params[name][:width] for name in ("b_1", "b_2") if name in params}
        return super().feed_forward(x, params=narrow)


@mistake("ffn-mixes-tokens")
class MixesTokens(Textbook):
    """The hidden layer reads the token before too, as a kernel of width 2 does."""

    def feed_forward(self, x: Array, *, params: Params) -> tuple[Array, Array]:
        before = np.pad(x, ((0, 0), (1, 0), (0, 0)))[:, :-1]
        return super().feed_forward(x + before, params=params)


# Layer normalisation


@mistake("ln-wrong-axis")
class NormOverTokens(Textbook):
    """Mean and variance run over the tokens as well as the channels."""

    norm_axis = (-2, -1)


@mistake("bn-for-ln")
class BatchNorm(Textbook):
    """Each channel is normalised over all samples and tokens."""

    def mean(self, x: Array) -> Array:
        return np.asarray(x.mean(axis=tuple(range(x.ndim - 1)), keepdims=True))


@mistake("rms-for-ln")
class RootMeanSquare(Textbook):
    """A row is divided by the root of its mean square, and its mean stays in it."""

    def centred(self, x: Array) -> Array:
        return x


@mistake("ln-unbiased")
class NormUnbiased(Textbook):
    """The variance divides by d_model − 1."""

    def variance(self, centred: Array) -> Array:
        d_model = centred.shape[-1]
        # Of one channel it is 0/0: NaN, as silently as the frameworks give it.
        with np.errstate(invalid="ignore"):
            return np.asarray(super().variance(centred) * d_model / (d_model - 1))


@mistake("ln-eps-outside")
class NormEpsOutside(Textbook):
    """The number eps is added to the standard deviation."""

    def denominator(self, variance: Array) -> Array:
        return np.asarray(np.sqrt(variance) + self.layer_norm_eps)


@mistake("ln-square")
class NormSquare(Textbook):
    """The root of the variance is a square."""

    def denominator(self, variance: Array) -> Array:
        return np.asarray(np.square(variance + self.layer_norm_eps))


@mistake("ln-no-affine")
class NormNoAffine(Textbook):
    """The parameters gamma and beta are left out."""

    def scaled_and_shifted(self, normal: Array, params: Params) -> Array:
        return normal


@mistake("ln-one-plus-gamma")
class NormOnePlusGamma(Textbook):
    """The scale is 1 + gamma."""

    def scaled_and_shifted(self, normal: Array, params: Params) -> Array:
        return super().scaled_and_shifted(normal, params) + normal


# Residual and normalisation


@mistake("residual-missing")
class ResidualMissing(Textbook):
    """A sub-layer replaces its input."""

    def residual(self, x: Array, output: Array, sums: list[Array]) -> Array:
        return output


@mistake("residual-wrong-x")
class ResidualWrongX(Textbook):
    """Every residual adds the input of the whole layer."""

    def residual(self, x: Array, output: Array, sums: list[Array]) -> Array:
        return sums[0] + output


@mistake("residual-normed")
class ResidualNormed(Textbook):
    """A sub-layer gives LN(x) + f(LN(x))."""

    def sublayer(
        self, x: Array, function: SubLayer, *, number: int, sums: list[Array], params: Params
    ) -> tuple[Array, Array]:
        normed = self.layer_norm(x, params=self.norm(params, number))
        output, extra = function(normed)
        return self.summed(normed, output, sums), extra


@mistake("residual-unnormed")
class ResidualUnnormed(Textbook):
    """Every residual but the first adds the sum before it as it was before its norm."""

    def residual(self, x: Array, output: Array, sums: list[Array]) -> Array:
        return sums[-1] + output


@mistake("norm-before-add")
class NormBeforeAdd(Textbook):
    """A sub-layer gives x + LN(f(x))."""

    def sublayer(
        self, x: Array, function: SubLayer, *, number: int, sums: list[Array], params: Params
    ) -> tuple[Array, Array]:
        output, extra = function(x)
        return self.summed(x, self.layer_norm(output, params=self.norm(params, number)), sums), extra


@mistake("norm-missing")
class NormMissing(Textbook):
    """A sub-layer gives x + f(x)."""

    def sublayer(
        self, x: Array, function: SubLayer, *, number: int, sums: list[Array], params: Params
    ) -> tuple[Array, Array]:
        output, extra = function(x)
        return self.summed(x, output, sums), extra


@mistake("wrong-ln-reused")
class NormOfTheOneBefore(Textbook):
    """Every sub-layer but the first is normalised by the norm of the one before it."""

    def norm(self, params: Params, number: int) -> Params:
        return super().norm(params, max(number - 1, 1))


# What a layer lacks, and what does not belong in it


@mistake("ffn-missing")
class FeedForwardMissing(Textbook):
    """A layer ends with its last attention."""

    def fed(self, x: Array, feed: SubLayer) -> Array:
        return x


@mistake("causal-in-encoder")
class CausalInEncoder(Textbook):
    """The encoder's self-attention hides later tokens."""

    def encoder_mask(self, mask: Array | None, seq: int) -> Array | None:
        causal = self.causal_mask(q_seq=seq, kv_seq=seq)
        return causal if mask is None else mask & causal


@mistake("pe-every-layer")
class PositionInEveryLayer(Textbook):
    """The positional encoding is added at the end of every layer, of the encoder and of the decoder."""

    def layer_output(self, output: Array) -> Array:
        return self.positional_encoding(super().layer_output(output))


# Cross-attention


@mistake("cross-missing")
class CrossMissing(Textbook):
    """The decoder layer has no sub-layer between self-attention and feed-forward network."""

    def crossed(self, attended: Array, look: SubLayer) -> tuple[Array, Array]:
        # The weights with which it would look: nothing comes of them.
        return attended, look(attended)[1]


@mistake("cross-q-source")
class CrossFromDecoder(Textbook):
    """The cross-attention is a second self-attention, with the mask of the first."""

    def cross_attend(
        self, x: Array, memory: Array, mask: Array | None, *, self_mask: Array | None, **rest: Any
    ) -> tuple[Array, Array]:
        return super().cross_attend(x, x, self_mask, self_mask=self_mask, **rest)


@mistake("cross-mask-absent")
class CrossMaskAbsent(Textbook):
    """The cross-attention ignores its mask."""

    def decoder_masks(self, self_mask: Array | None, memory_mask: Array | None) -> tuple[Array | None, Array | None]:
        return self_mask, None


@mistake("cross-uses-tgt-mask")
class CrossUsesTargetMask(Textbook):
    """The cross-attention uses the mask of the self-attention."""

    def decoder_masks(self, self_mask: Array | None, memory_mask: Array | None) -> tuple[Array | None, Array | None]:
        return self_mask, self_mask


@mistake("causal-in-cross")
class CausalInCross(Textbook):
    """The cross-attention hides later memory rows."""

    def cross_attend(self, x: Array, memory: Array, mask: Array | None, **rest: Any) -> tuple[Array, Array]:
        causal = self.causal_mask(q_seq=x.shape[1], kv_seq=memory.shape[1])
        return super().cross_attend(x, memory, causal if mask is None else mask & causal, **rest)


@mistake("cross-self-weights")
class CrossSelfWeights(Textbook):
    """The cross-attention has the weights of the self-attention."""

    def cross_attend(
        self, x: Array, memory: Array, mask: Array | None, *, params: Params, **rest: Any
    ) -> tuple[Array, Array]:
        own = {f"cross_attention.{name}": p for name, p in part(params, "self_attention").items()}
        return super().cross_attend(x, memory, mask, params=own, **rest)


# Stacks


@mistake("layer-skipped")
class LastLayerSkipped(Textbook):
    """The last layer of a stack hands on what it reads."""

    def stack(
        self, x: Array, layer: Callable[[Array, int], Array], num_layers: int, last_norm: Params
    ) -> dict[str, Array]:
        def without_the_last(x: Array, index: int) -> Array:
            return layer(x, index) if index < num_layers - 1 else x

        return super().stack(x, without_the_last, num_layers, last_norm)


@mistake("layers-shared")
class LayersShared(Textbook):
    """Every layer uses the parameters of the first."""

    def layer_params(self, params: Params, stack: str, index: int) -> Params:
        return super().layer_params(params, stack, 0)


@mistake("final-norm-extra")
class FinalNormExtra(Textbook):
    """The last normalisation is applied once more after the stack."""

    def stack_output(self, x: Array, last_norm: Params) -> Array:
        return self.layer_norm(x, params=last_norm)
