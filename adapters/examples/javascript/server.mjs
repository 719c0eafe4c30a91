// Answers the suite's requests, one JSON message a line: standard input to standard output.

import { Arguments, BAD_ARGUMENT, Refusal, isObject, writeArray } from "./arguments.mjs";
import { COMPONENTS } from "./components.mjs";

const NOT_JSON = -32700;
const NO_REQUEST = -32600;
const NO_SUCH_METHOD = -32601;
const RAISED = -32000;
const MAX_MESSAGE = 64 * 2 ** 20;

const HANDSHAKE = {
  protocol: 1,
  name: "transformer.mjs",
  version: "1.0",
  language: `JavaScript, Node ${process.versions.node}`,
  components: Object.keys(COMPONENTS),
  conventions: { empty_row: "nan", layer_norm_eps: "1e-5", norm_placement: "post" },
  dtypes: ["float64", "float32"],
};

function parsed(line) {
  try {
    return JSON.parse(line);
  } catch (error) {
    throw new Refusal(NOT_JSON, `the message is not JSON: ${error.message}`);
  }
}

function result(method, params) {
  if (method === "initialize") {
    if (params.protocol !== 1) throw new Refusal(BAD_ARGUMENT, "protocol: this is written for version 1");
    return HANDSHAKE;
  }
  if (method === "shutdown") return null;
  if (!Object.hasOwn(COMPONENTS, method)) throw new Refusal(NO_SUCH_METHOD, `there is no ${method}`);
  const given = new Arguments(params);
  const outputs = Object.entries(COMPONENTS[method](given));
  const write = (result) => (typeof result === "number" ? result : writeArray(result, given.dtype)); // a state is a number
  return Object.fromEntries(outputs.map(([name, result]) => [name, write(result)]));
}

/** The reply to a line, whatever it is, and whether it was the last. */
function answer(line) {
  let id = null;
  try {
    const request = parsed(line);
    if (!isObject(request)) throw new Refusal(NO_REQUEST, "expected an object");
    if (!Number.isSafeInteger(request.id) || request.id < 0) {
      throw new Refusal(NO_REQUEST, "id: expected a whole number of at least 0");
    }
    id = request.id;
    const { jsonrpc, method, params = {} } = request;
    if (jsonrpc !== "2.0" || typeof method !== "string" || !isObject(params)) {
      throw new Refusal(NO_REQUEST, 'expected jsonrpc "2.0", the name of a method, and params by name');
    }
    return [{ jsonrpc: "2.0", id, result: result(method, params) }, method === "shutdown"];
  } catch (error) {
    const { code, message, stack } = error;
    const shown = error instanceof Refusal ? { code, message } : { code: RAISED, message, data: stack };
    return [{ jsonrpc: "2.0", id, error: shown }, false];
  }
}

/** The lines of a stream of bytes; it ends with one that is longer than a message. */
async function* lines(stream) {
  let parts = [];
  let size = 0;
  for await (let chunk of stream) {
    for (let end = chunk.indexOf(10); end >= 0; end = chunk.indexOf(10)) {
      yield Buffer.concat([...parts, chunk.subarray(0, end)]).toString("utf8");
      chunk = chunk.subarray(end + 1);
      parts = [];
      size = 0;
    }
    parts.push(chunk);
    size += chunk.length;
    if (size > MAX_MESSAGE) return;
  }
}

for await (const line of lines(process.stdin)) {
  const [reply, last] = answer(line);
  process.stdout.write(`${JSON.stringify(reply)}\n`);
  if (last) break;
}
