// What the suite can call: takes the arguments of each component, calls the transformer, and names its results.

import { BAD_ARGUMENT, Refusal } from "./arguments.mjs";
import * as transformer from "./transformer.mjs";

/** Applies f to what lies `depth` axes deep in the arrays, all of the same leading axes; an absent one stays so. */
function along(depth, f, ...arrays) {
  if (depth === 0) return f(...arrays);
  return arrays[0].map((_, i) => along(depth - 1, f, ...arrays.map((array) => array?.[i])));
}

/** Objects of arrays, nested `depth` deep in arrays, to one object of arrays. */
function collected(depth, results) {
  const names = Object.keys([results].flat(depth + 1)[0]);
  return Object.fromEntries(names.map((name) => [name, along(depth, (result) => result[name], results)]));
}

function attentionParams(given, at, sizes) {
  const [query, key, value] = sizes;
  return {
    w_q: given.param(`${at}w_q`, `${query} heads*d_k`),
    b_q: given.optionalParam(`${at}b_q`, "heads*d_k"),
    w_k: given.param(`${at}w_k`, `${key} heads*d_k`),
    b_k: given.optionalParam(`${at}b_k`, "heads*d_k"),
    w_v: given.param(`${at}w_v`, `${value} heads*d_v`),
    b_v: given.optionalParam(`${at}b_v`, "heads*d_v"),
    w_o: given.param(`${at}w_o`, "heads*d_v d_model"),
    b_o: given.optionalParam(`${at}b_o`, "d_model"),
  };
}

function headCount(given) {
  const heads = given.count("num_heads");
  for (const columns of [given.size("heads*d_k"), given.size("heads*d_v")]) {
    if (columns % heads) throw new Refusal(BAD_ARGUMENT, `num_heads: ${heads} heads do not divide ${columns} columns`);
  }
  return heads;
}

const normParams = (given, at) => ({
  gamma: given.param(`${at}gamma`, "d_model"),
  beta: given.param(`${at}beta`, "d_model"),
});

const feedForwardParams = (given, at) => ({
  w_1: given.param(`${at}w_1`, "d_model d_ff"),
  b_1: given.optionalParam(`${at}b_1`, "d_ff"),
  w_2: given.param(`${at}w_2`, "d_ff d_model"),
  b_2: given.optionalParam(`${at}b_2`, "d_model"),
});

/** The keys and values so far, by the numbers of their states: a session has at most 64 calls. */
const STATES = new Map();
const MOST_STATES = 64;
let stateCount = 0;

function keepState(state) {
  STATES.set(stateCount, state);
  if (STATES.size > MOST_STATES) STATES.delete(STATES.keys().next().value);
  return stateCount++;
}

function findState(number) {
  if (number === undefined) return undefined;
  if (!STATES.has(number)) throw new Refusal(BAD_ARGUMENT, `state: ${number} is none of the last ${MOST_STATES} states`);
  return STATES.get(number);
}

/** By the names of their methods; each returns its results, nested, by name. */
export const COMPONENTS = {
  softmax(given) {
    const scores = given.input("scores", "... n");
    given.done();
    return { output: along(given.size("...").length, transformer.softmax, scores) };
  },

  scaled_dot_product_attention(given) {
    given.withoutDropout();
    const query = given.input("query", "... q_seq d_k");
    const key = given.input("key", "... kv_seq d_k");
    const value = given.input("value", "... kv_seq d_v");
    const lead = given.size("...");
    const mask = given.mask([...lead, given.size("q_seq"), given.size("kv_seq")]);
    given.done();
    return collected(lead.length, along(lead.length, transformer.attention, query, key, value, mask));
  },

  cached_attention(given) {
    const query = given.input("query", "batch heads new d_k");
    const before = findState(given.state());
    const append = (name, axes) => {
      const added = given.input(name, axes);
      return before ? along(2, (old, rows) => [...old, ...rows], before[name], added) : added;
    };
    const state = { key: append("key", "batch kv_heads new d_k"), value: append("value", "batch kv_heads new d_v") };
    const [heads, shared] = [given.size("heads"), given.size("kv_heads")];
    if (heads % shared) throw new Refusal(BAD_ARGUMENT, `query: ${heads} heads are no multiple of ${shared}`);
    const soFar = state.key[0][0].length;
    const masks = given.mask([given.size("batch"), 1, 1, soFar]);
    given.done();
    const attend = (sample, b) =>
      sample.map((rows, h) => {
        const g = Math.floor((h * shared) / heads);
        const [key, value] = [state.key[b][g], state.value[b][g]];
        return transformer.cachedAttention(rows, key, value, soFar - given.size("new"), masks?.[b][0][0]);
      });
    return { output: query.map(attend), state: keepState(state) };
  },

  positional_encoding(given) {
    given.withoutDropout();
    const x = given.input("x", "batch seq d_model");
    given.done();
    return { output: x.map(transformer.positionalEncoding) };
  },

  multi_head_attention(given) {
    given.withoutDropout();
    const query = given.input("query", "batch q_seq d_query");
    const key = given.input("key", "batch kv_seq d_key");
    const value = given.input("value", "batch kv_seq d_value");
    const w = attentionParams(given, "", ["d_query", "d_key", "d_value"]);
    const heads = headCount(given);
    const masks = given.mask([given.size("batch"), heads, given.size("q_seq"), given.size("kv_seq")]);
    given.done();
    const attend = (q, k, v, mask) => transformer.multiHeadAttention(q, k, v, mask, heads, w);
    return collected(1, along(1, attend, query, key, value, masks));
  },

  layer_norm(given) {
    const x = given.input("x", "... d_model");
    const w = normParams(given, "");
    given.done();
    return { output: along(given.size("...").length, (row) => transformer.layerNorm(row, w), x) };
  },

  feed_forward(given) {
    given.withoutDropout();
    const x = given.input("x", "batch seq d_model");
    const w = feedForwardParams(given, "");
    given.done();
    return collected(1, x.map((sample) => transformer.feedForward(sample, w)));
  },

  encoder_layer(given) {
    given.withoutDropout();
    const x = given.input("x", "batch seq d_model");
    const w = {
      self_attention: attentionParams(given, "self_attention.", ["d_model", "d_model", "d_model"]),
      norm_1: normParams(given, "norm_1."),
      feed_forward: feedForwardParams(given, "feed_forward."),
      norm_2: normParams(given, "norm_2."),
    };
    const heads = headCount(given);
    const masks = given.mask([given.size("batch"), heads, given.size("seq"), given.size("seq")]);
    given.done();
    return collected(1, along(1, (sample, mask) => transformer.encoderLayer(sample, mask, heads, w), x, masks));
  },
};
