// Four components in JavaScript, to be run by read_calls.mjs. Put your own in their place.
//
// A component takes inputs and parameters by name, and {options, attributes, cotangent}. It returns outputs by name; with a
// cotangent it returns the gradients of its arguments, under `gradients`. An array is {shape, values}, row by row.

export class Refused extends Error {}
const demand = (holds, message) => { if (!holds) throw new Refused(message); };
const total = (row) => row.reduce((sum, number) => sum + number, 0);
const range = (count) => Array.from({ length: count }, (_, index) => index);
const dot = (left, right) => left.reduce((sum, number, index) => sum + number * right[index], 0);
const same = (left, right) => left.length === right.length && left.every((size, axis) => size === right[axis]);
const rows = ({ shape, values }) => range(values.length / shape.at(-1)).map((i) => values.slice(i * shape.at(-1), (i + 1) * shape.at(-1)));
const array = (shape, listed) => ({ shape, values: listed.flat() });

function softmaxRow(scores, keep, emptyRow) {
  if (!keep.some(Boolean)) return scores.map(() => ({ uniform: 1 / scores.length, zeros: 0, nan: NaN })[emptyRow]);
  const largest = Math.max(...scores.filter((_, key) => keep[key]));
  const powers = scores.map((score, key) => (keep[key] ? Math.exp(score - largest) : 0));
  const sum = total(powers);
  return powers.map((power) => power / sum);
}

// Backwards through one row of a softmax: weights · (gradient − Σ weights · gradient).
const softmaxSlope = (weights, gradient) => weights.map((weight, key) => weight * (gradient[key] - dot(weights, gradient)));

function dropout(values, { dropout_rate: rate = 0, training = true, seed }) {
  demand(rate >= 0 && rate <= 1, "dropout_rate");
  if (!rate || !training) return values;
  let state = seed + 1;
  const random = () => (state = (state * 48271) % 2147483647) / 2147483647;
  range(100).forEach(random); // the first numbers of small seeds are small
  return values.map((value) => (random() < rate ? 0 : value / (1 - rate)));
}

function softmax({ scores }, { cotangent }) {
  demand(!scores.shape.includes(0), "scores");
  const weights = rows(scores).map((row) => softmaxRow(row, row.map(() => true)));
  const slopes = cotangent && rows(cotangent).map((gradient, i) => softmaxSlope(weights[i], gradient));
  return { output: array(scores.shape, weights), gradients: { scores: slopes && array(scores.shape, slopes) } };
}

function layer_norm({ x, gamma, beta }, { options, cotangent }) {
  const width = x.shape.at(-1), byStd = options.norm_divisor === "std_plus_eps", eps = Number(options.layer_norm_eps);
  demand(width > 0 && gamma && beta && same(gamma.shape, [width]) && same(beta.shape, [width]), "x, gamma, beta");
  const count = byStd ? width - 1 : width;
  const normed = rows(x).map((row) => {
    const mean = total(row) / width, centred = row.map((number) => number - mean);
    const variance = dot(centred, centred) / count;
    const divisor = byStd ? Math.sqrt(variance) + eps : Math.sqrt(variance + eps);
    return { centred, divisor, root: byStd ? divisor - eps : divisor, hat: centred.map((number) => number / divisor) };
  });
  const output = array(x.shape, normed.map(({ hat }) => hat.map((number, c) => number * gamma.values[c] + beta.values[c])));
  if (!cotangent) return { output };
  const above = rows(cotangent);
  const slopes = normed.map(({ centred, divisor, root }, i) => {
    const hat = above[i].map((gradient, c) => gradient * gamma.values[c]), mean = total(hat) / width;
    const share = dot(hat, centred) / (divisor * divisor * root * count);
    return hat.map((gradient, c) => (gradient - mean) / divisor - centred[c] * share);
  });
  const column = (listed) => array([width], [range(width).map((c) => total(listed.map((row) => row[c])))]);
  const scaled = above.map((row, i) => row.map((gradient, c) => gradient * normed[i].hat[c]));
  return { output, gradients: { x: array(x.shape, slopes), gamma: column(scaled), beta: column(above) } };
}

function positional_encoding({ x }, { options, attributes }) {
  demand(!x.shape.includes(0), "x");
  const [, seq, width] = x.shape, half = width / 2, { pe_layout: layout, odd_d_model: odd } = options;
  const encode = (place, channel) => {
    if (odd === "zero" && width % 2 && channel === width - 1) return 0;
    const paired = layout === "interleaved", pair = paired ? Math.floor(channel / 2) : channel % half;
    const exponent = layout === "tensor2tensor" ? pair / Math.max(half - 1, 1) : (2 * pair) / width;
    return (paired ? channel % 2 : channel >= half) ? Math.cos(place / 10000 ** exponent) : Math.sin(place / 10000 ** exponent);
  };
  const sums = rows(x).map((row, i) => row.map((number, channel) => number + encode(i % seq, channel)));
  return { output: { shape: x.shape, values: dropout(sums.flat(), attributes) } };
}

function scaled_dot_product_attention({ query, key, value, mask }, { options, attributes, cotangent }) {
  const lead = query.shape.slice(0, -2), [queries, width] = query.shape.slice(-2), [keys, channels] = value.shape.slice(-2);
  demand(![query, key, value].some(({ shape }) => shape.includes(0)), "query, key, value");
  demand(same(key.shape, [...lead, keys, width]) && same(value.shape.slice(0, -2), lead), "key, value");
  const full = [...lead, queries, keys], offset = full.length - (mask?.shape.length ?? 0);
  demand(!mask || (offset >= 0 && mask.shape.every((size, axis) => size === 1 || size === full[axis + offset])), "mask");
  const strides = full.map((_, axis) => full.slice(axis + 1).reduce((product, size) => product * size, 1));
  const index = (place, axis, size) => (size === 1 ? 0 : Math.floor(place / strides[axis + offset]) % size);
  const allows = (place) => mask.values[mask.shape.reduce((at, size, axis) => at * size + index(place, axis, size), 0)];
  const q = rows(query), k = rows(key), v = rows(value), of = (i, j) => Math.floor(i / queries) * keys + j;
  const scores = q.map((row, i) => range(keys).map((j) => dot(row, k[of(i, j)])));
  const scaled = scores.map((row) => row.map((score) => score / Math.sqrt(width)));
  const keep = q.map((_, i) => range(keys).map((j) => !mask || allows(i * keys + j)));
  const weights = scaled.map((row, i) => softmaxRow(row, keep[i], options.empty_row));
  const left = rows({ shape: full, values: dropout(weights.flat(), attributes) });
  const mix = (row, i) => range(channels).map((c) => total(row.map((weight, j) => (weight ? weight * v[of(i, j)][c] : 0))));
  const output = left.map((row, i) => (row.some(Number.isNaN) ? Array(channels).fill(NaN) : mix(row, i)));
  const result = { output: array([...lead, queries, channels], output), weights: array(full, weights), scores: array(full, scores), scaled_scores: array(full, scaled) };
  if (!cotangent) return result;
  const above = rows(cotangent), zeros = (listed) => listed.map((row) => row.map(() => 0));
  const [toQ, toK, toV] = [zeros(q), zeros(k), zeros(v)];
  above.forEach((gradient, i) => {
    const slopes = softmaxSlope(weights[i], range(keys).map((j) => dot(gradient, v[of(i, j)])));
    range(keys).forEach((j) => {
      const slope = keep[i].some(Boolean) ? slopes[j] / Math.sqrt(width) : 0, at = of(i, j);
      q[i].forEach((number, c) => { toQ[i][c] += slope * k[at][c]; toK[at][c] += slope * number; });
      gradient.forEach((number, c) => { toV[at][c] += weights[i][j] * number; });
    });
  });
  return { gradients: { query: array(query.shape, toQ), key: array(key.shape, toK), value: array(value.shape, toV) } };
}

export const components = [softmax, layer_norm, positional_encoding, scaled_dot_product_attention];
