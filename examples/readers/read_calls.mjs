// Runs every exported case of the components of a module, without goldformer:
//
//     goldformer export calls && node read_calls.mjs calls components.mjs
//
// The module exports `components`, a list of functions, and `Refused`, the error of a call that a component refuses.
import { readFileSync } from "node:fs";
import { resolve } from "node:path";
import { pathToFileURL } from "node:url";

const [folder, file] = process.argv.slice(2);
const { components, Refused } = await import(pathToFileURL(resolve(file)));

const mean = (values) => values.reduce((sum, value) => sum + value, 0) / values.length;
const statistics = {
  zeros: (values) => values.filter((value) => value === 0).length / values.length,
  mean,
  mean_square: (values) => mean(values.map((value) => value * value)),
  largest: (values) => Math.max(...values.map(Math.abs)),
};

// Equal numbers have no error, and a NaN that is not expected has an infinite one. A tolerance of 0 means equal.
function ratio(actual, expected, tolerance) {
  if (Object.is(actual, expected) || actual === expected) return 0;
  const error = Math.abs(actual - expected) / tolerance;
  return Number.isNaN(error) ? Infinity : error;
}

// The largest error ÷ tolerance of the statistics of a random output.
function compareStatistics(actual, expected, tau) {
  const errors = Object.entries(expected).map(([name, { value, within }]) => {
    const rounding = { zeros: 0, mean_square: tau * (2 * Math.sqrt(value + within) + tau) }[name] ?? tau;
    return ratio(statistics[name](actual.values), value, within + rounding);
  });
  return Math.max(0, ...errors);
}

// The largest error ÷ tolerance of an output, of the values at some places or of all.
function compare(actual, expected) {
  if (String(actual.shape) !== String(expected.shape)) return Infinity;
  const tau = expected.tolerance?.float64;
  if (expected.tolerance && tau === undefined) return 0; // the case is not judged in this dtype
  if (expected.statistics) return compareStatistics(actual, expected.statistics, tau);
  const places = expected.at?.map((place) => place.reduce((at, index, axis) => at * actual.shape[axis] + index, 0));
  return (expected.values ?? []).reduce((worst, golden, i) => {
    const value = actual.values[places?.[i] ?? i];
    return Math.max(worst, ratio(value, Number(golden), tau)); // Number reads "NaN" and "Infinity" too
  }, 0);
}

// The largest error ÷ tolerance of a case under its first options.
function run(component, { inputs, params, attributes, cotangent }, expected) {
  const options = Object.fromEntries(Object.entries(expected.options).map(([name, admitted]) => [name, admitted[0]]));
  const given = Object.entries({ ...inputs, ...params }).filter(([name]) => !expected.without?.includes(name));
  let result;
  try {
    result = component(Object.fromEntries(given), { options, attributes, cotangent });
  } catch (error) {
    if (!(error instanceof Refused)) throw error;
    return expected.refuses || expected.may_refuse ? 0 : Infinity;
  }
  if (expected.may_refuse) return 0;
  if (expected.refuses) return Infinity;
  const outputs = cotangent ? result.gradients : result;
  return Math.max(...Object.entries(expected.outputs).map(([name, output]) => compare(outputs[name], output)));
}

let failed = 0;
for (const component of components) {
  const { edition, version, digest, cases } = JSON.parse(readFileSync(`${folder}/${component.name}.json`, "utf8"));
  const runs = cases.flatMap((one) => one.expect.map((expected) => ({ id: one.id, error: run(component, one, expected) })));
  const bad = runs.filter(({ error }) => error > 1);
  failed += bad.length;
  const worst = Math.max(...runs.map(({ error }) => error)).toPrecision(2);
  console.log(
    `${component.name}: spec ${edition}/${version} ${digest}, ${cases.length} cases, ${runs.length} runs, ` +
      `${bad.length} disagree, largest error ${worst} of the tolerance`,
  );
  for (const { id, error } of bad) console.log(`  ${id}: ${error.toPrecision(3)} of the tolerance`);
}
process.exit(failed ? 1 : 0);
