// The arguments of a call: arrays of the protocol to nested arrays and back, each checked against its axes.

export const BAD_ARGUMENT = -32602;
export const NOT_IMPLEMENTED = -32001;

/** An answer that is an error. */
export class Refusal extends Error {
  constructor(code, message) {
    super(message);
    this.code = code;
  }
}

export const isObject = (thing) => typeof thing === "object" && thing !== null && !Array.isArray(thing);

const refuse = (name, why) => new Refusal(BAD_ARGUMENT, `${name}: ${why}`);
const SPELT = { NaN: NaN, Infinity: Infinity, "-Infinity": -Infinity };
const MAX_AXES = 8;
const MAX_ELEMENTS = 2 ** 24;

/** Each argument is taken once by its name, and no argument may be left over. */
export class Arguments {
  #inputs;
  #params;
  #sizes = new Map();

  constructor({ params = {}, ...inputs }) {
    if (!isObject(params)) throw refuse("params", "expected an object of arrays by name");
    this.#inputs = new Map(Object.entries(inputs));
    this.#params = new Map(Object.entries(params));
  }

  /** The dtype of the floats, which all have the same. */
  dtype;

  /** An input of floats with these axes, nested; "..." stands for any number of leading ones. */
  input(name, axes) {
    return this.#floats(name, axes, this.#inputs);
  }

  param(name, axes) {
    return this.#floats(name, axes, this.#params);
  }

  optionalParam(name, axes) {
    return this.#params.has(name) ? this.param(name, axes) : undefined;
  }

  /** The size of an axis; of "..." the list of sizes. */
  size(axis) {
    return this.#sizes.get(axis).size;
  }

  /** The mask, nested and spread over scores of this shape, or undefined when there is no mask. */
  mask(shape) {
    if (!this.#inputs.has("mask")) return undefined;
    const mask = readArray("mask", take("mask", this.#inputs));
    if (mask.dtype !== "bool") throw refuse("mask", `dtype is ${mask.dtype}, but a mask is bool: true = may attend`);
    const added = shape.length - mask.shape.length;
    const full = [...Array(Math.max(0, added)).fill(1), ...mask.shape];
    if (added < 0 || full.some((size, axis) => size !== 1 && size !== shape[axis])) {
      throw refuse("mask", `shape [${mask.shape}] does not broadcast to that of the scores, [${shape}]`);
    }
    return spread(nested(mask.data, full), shape);
  }

  /** The number of the state that the call continues, or undefined where a sequence begins. */
  state() {
    if (!this.#inputs.has("state")) return undefined;
    const number = take("state", this.#inputs);
    if (!Number.isSafeInteger(number) || number < 0) throw refuse("state", "expected a number that an earlier call returned");
    return number;
  }

  /** An attribute that is a whole number of at least 1. */
  count(name) {
    const value = take(name, this.#inputs);
    if (!Number.isSafeInteger(value) || value < 1) throw refuse(name, "expected a whole number of at least 1");
    return value;
  }

  /** Refuses a call with an argument of dropout, which is not implemented here. */
  withoutDropout() {
    const given = ["dropout_rate", "training", "seed"].some((name) => this.#inputs.has(name));
    if (given) throw new Refusal(NOT_IMPLEMENTED, "dropout is not implemented");
  }

  /** Refuses a call with an argument that was not taken. */
  done() {
    const [left] = [...this.#inputs.keys(), ...this.#params.keys()];
    if (left !== undefined) throw refuse(left, "there is no such argument");
  }

  #floats(name, axes, from) {
    const array = readArray(name, take(name, from));
    this.dtype ??= array.dtype;
    if (array.dtype === "bool" || array.dtype !== this.dtype) {
      throw refuse(name, `dtype is ${array.dtype}, expected one of floats, the same for all`);
    }
    this.#fit(name, array.shape, axes.split(" "));
    return nested(array.data, array.shape);
  }

  /** Each axis has one size throughout a call, and no axis is empty. */
  #fit(name, shape, axes) {
    const anyLead = axes[0] === "...";
    const lead = shape.length - axes.length + (anyLead ? 1 : 0);
    if (lead < 0 || (!anyLead && lead > 0)) throw refuse(name, `shape [${shape}] is not [${axes.join(" ")}]`);
    const sizes = anyLead ? [shape.slice(0, lead), ...shape.slice(lead)] : shape;
    axes.forEach((axis, i) => {
      if ([sizes[i]].flat().includes(0)) throw refuse(name, `shape [${shape}] is empty along ${axis}`);
      const known = this.#sizes.get(axis);
      if (known && String(known.size) !== String(sizes[i])) {
        throw refuse(name, `shape [${shape}] is not [${axes.join(" ")}]: ${axis} is ${known.size} in ${known.name}`);
      }
      if (!known) this.#sizes.set(axis, { size: sizes[i], name });
    });
  }
}

/** A result as the protocol writes it: numbers of the dtype, flat. Math.fround rounds to a float32. */
export function writeArray(array, dtype) {
  const shape = [];
  for (let inner = array; Array.isArray(inner); inner = inner[0]) shape.push(inner.length);
  const round = dtype === "float32" ? Math.fround : (x) => x;
  const data = array.flat(Infinity).map((x) => (Number.isFinite(round(x)) ? round(x) : String(round(x))));
  return { dtype, shape, data };
}

function take(name, from) {
  if (!from.has(name)) throw refuse(name, "missing");
  const value = from.get(name);
  from.delete(name);
  return value;
}

function readArray(name, json) {
  if (!isObject(json)) throw refuse(name, "expected an array, an object of dtype, shape and data");
  const { dtype, shape, data } = json;
  if (!["float64", "float32", "bool"].includes(dtype)) {
    throw refuse(name, `dtype is ${JSON.stringify(dtype)}, expected float64, float32 or bool`);
  }
  const isSize = (size) => Number.isInteger(size) && size >= 0 && size <= MAX_ELEMENTS;
  if (!Array.isArray(shape) || shape.length > MAX_AXES || !shape.every(isSize)) {
    throw refuse(name, `shape is not a list of at most ${MAX_AXES} sizes`);
  }
  const count = shape.reduce((a, b) => a * b, 1);
  if (!Array.isArray(data) || data.length !== count) {
    throw refuse(name, `data is not a list of ${count} elements, which its shape has`);
  }
  return { dtype, shape, data: data.map((element) => readElement(name, dtype, element)) };
}

function readElement(name, dtype, element) {
  if (dtype === "bool" && typeof element === "boolean") return element;
  if (dtype !== "bool" && typeof element === "string" && Object.hasOwn(SPELT, element)) return SPELT[element];
  const value = dtype === "float32" ? Math.fround(element) : element;
  if (dtype !== "bool" && typeof element === "number" && Number.isFinite(value)) return value;
  throw refuse(name, `data has ${JSON.stringify(element)}, which is no ${dtype}`);
}

/** Flat and row-major to an array of arrays. */
function nested(data, shape) {
  const width = shape.slice(1).reduce((a, b) => a * b, 1);
  if (shape.length < 2) return data;
  return Array.from({ length: shape[0] }, (_, i) => nested(data.slice(i * width, (i + 1) * width), shape.slice(1)));
}

/** Repeats the axes of size 1 to a shape. */
function spread(array, shape) {
  if (shape.length === 0) return array;
  return Array.from({ length: shape[0] }, (_, i) => spread(array[array.length === 1 ? 0 : i], shape.slice(1)));
}
