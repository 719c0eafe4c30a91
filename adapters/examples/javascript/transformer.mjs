// Attention and an encoder layer. A matrix is an array of rows; nothing here knows of protocols.

const zip = (f, ...arrays) => arrays[0].map((_, i) => f(...arrays.map((array) => array[i])));
const transposed = (a) => a[0].map((_, j) => a.map((row) => row[j]));
const sum = (a, b) => zip((p, q) => zip((x, y) => x + y, p, q), a, b);

function dot(a, b) {
  let total = 0;
  for (let i = 0; i < a.length; i++) total += a[i] * b[i];
  return total;
}

function product(a, b) {
  const columns = transposed(b);
  return a.map((row) => columns.map((column) => dot(row, column)));
}

/** x·W + b, where W is (in, out); a bias that is absent adds nothing. */
function affine(x, weight, bias) {
  const result = product(x, weight);
  return bias ? result.map((row) => zip((y, b) => y + b, row, bias)) : result;
}

/** exp(s − max) / Σ exp(s − max) of a row: without the maximum a large score would overflow. */
export function softmax(scores) {
  const largest = scores.reduce((a, b) => Math.max(a, b));
  const powers = scores.map((score) => Math.exp(score - largest));
  const total = powers.reduce((a, b) => a + b);
  return powers.map((power) => power / total);
}

/**
 * softmax(QKᵀ/√d_k)·V; the mask is true where a query may attend to a key.
 * A masked score is −∞, so a row without any key is NaN: −∞ − (−∞).
 */
export function attention(query, key, value, mask) {
  const scores = product(query, transposed(key));
  const scaled_scores = scores.map((row) => row.map((score) => score / Math.sqrt(query[0].length)));
  const seen = mask
    ? zip((row, keep) => zip((score, may) => (may ? score : -Infinity), row, keep), scaled_scores, mask)
    : scaled_scores;
  const weights = seen.map(softmax);
  return { output: product(weights, value), weights, scores, scaled_scores };
}

/** Attention of the new tokens of one head to `cached` tokens and to themselves, but not to later ones. */
export function cachedAttention(query, key, value, cached, mask) {
  const seen = query.map((_, i) => key.map((_, j) => j <= cached + i && (mask?.[j] ?? true)));
  return attention(query, key, value, seen).output;
}

/** The row of a position: sine and cosine of pair i on channels 2i and 2i + 1. */
export function positionRow(position, d_model) {
  return Array.from({ length: d_model }, (_, channel) => {
    const even = channel - (channel % 2);
    const angle = position / 10000 ** (even / d_model);
    return channel === even ? Math.sin(angle) : Math.cos(angle);
  });
}

/** x plus the encoding of its positions, (seq, d_model). */
export const positionalEncoding = (x) =>
  x.map((row, position) => zip((a, b) => a + b, row, positionRow(position, row.length)));

/** Head j owns the j-th block of columns of q, k and v; masks holds one mask for each head. */
export function multiHeadAttention(query, key, value, masks, heads, w) {
  const split = (x) => {
    const width = x[0].length / heads;
    return Array.from({ length: heads }, (_, j) => x.map((row) => row.slice(j * width, (j + 1) * width)));
  };
  const q = split(affine(query, w.w_q, w.b_q));
  const k = split(affine(key, w.w_k, w.b_k));
  const v = split(affine(value, w.w_v, w.b_v));
  const attended = q.map((_, j) => attention(q[j], k[j], v[j], masks?.[j]));
  const outputs = attended.map((head) => head.output);
  const concatenated = query.map((_, i) => outputs.flatMap((output) => output[i]));
  return {
    output: affine(concatenated, w.w_o, w.b_o),
    weights: attended.map((head) => head.weights),
    q, k, v,
    scaled_scores: attended.map((head) => head.scaled_scores),
    heads: outputs,
  };
}

/** (x − μ)/√(σ² + ε)·γ + β of a row; the variance divides by the number of channels. */
export function layerNorm(row, { gamma, beta }, eps = 1e-5) {
  const mean = row.reduce((a, b) => a + b) / row.length;
  const centred = row.map((x) => x - mean);
  const variance = dot(centred, centred) / row.length;
  return zip((x, g, b) => (x / Math.sqrt(variance + eps)) * g + b, centred, gamma, beta);
}

/** max(0, x·W_1 + b_1)·W_2 + b_2. */
export function feedForward(x, w) {
  const hidden = affine(x, w.w_1, w.b_1).map((row) => row.map((y) => Math.max(0, y)));
  return { output: affine(hidden, w.w_2, w.b_2), hidden };
}

/** Self-attention and feed-forward, each added to what it started from and normalised. */
export function encoderLayer(x, masks, heads, w) {
  const { output, weights } = multiHeadAttention(x, x, x, masks, heads, w.self_attention);
  const attended = sum(x, output).map((row) => layerNorm(row, w.norm_1));
  const second = sum(attended, feedForward(attended, w.feed_forward).output);
  return { output: second.map((row) => layerNorm(row, w.norm_2)), attended, weights };
}
