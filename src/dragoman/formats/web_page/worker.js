// The model, in a thread of its own: the page stays usable while a text is translated.

import * as ort from "./onnxruntime-web.js";
import { Pieces } from "./pieces.js";
import { Translator } from "./translator.js";

let translator = null;
let latest = 0;

/** The content of a file beside this one; reports its bytes as they come. */
async function read(name, size, count) {
  let response;
  try {
    response = await fetch(new URL(name, import.meta.url));
  } catch {
    throw new Error(`${name} cannot be reached. Is the server still running?`);
  }
  if (!response.ok) throw new Error(`The server answered ${response.status} for ${name}.`);
  const content = new Uint8Array(size);
  const reader = response.body.getReader();
  let place = 0;
  try {
    for (let { done, value } = await reader.read(); !done; { done, value } = await reader.read()) {
      if (place + value.length > size) throw new Error();
      content.set(value, place);
      place += value.length;
      count(value.length);
    }
  } catch {
    throw new Error(`${name} broke off or is not the file of this export. Load the page again.`);
  }
  if (place !== size) throw new Error(`${name} broke off. Load the page again.`);
  return content;
}

async function load() {
  const started = performance.now();
  const response = await fetch(new URL("web.json", import.meta.url));
  if (!response.ok) throw new Error(`The server answered ${response.status} for web.json.`);
  const settings = await response.json();
  const names = Object.keys(settings.files);
  const of = names.reduce((sum, name) => sum + settings.files[name], 0);
  let bytes = 0;
  const count = (more) => {
    bytes += more;
    postMessage({ kind: "loading", bytes, of });
  };
  const contents = await Promise.all(names.map((name) => read(name, settings.files[name], count)));
  const files = Object.fromEntries(names.map((name, place) => [name, contents[place]]));
  ort.env.wasm.numThreads = 1; // more need headers that a plain static server does not send
  ort.env.wasm.wasmBinary = files["onnxruntime-web.wasm"].buffer;
  const options = { executionProviders: ["wasm"] };
  const encoder = await ort.InferenceSession.create(files["encoder.onnx"], options);
  const decoder = await ort.InferenceSession.create(files["decoder.onnx"], options);
  translator = new Translator(
    settings,
    new Pieces(files["source.model"]),
    new Pieces(files["target.model"]),
    graphs(encoder, decoder),
  );
  const seconds = (performance.now() - started) / 1000;
  postMessage({ kind: "ready", bytes: of, seconds, directions: settings.directions });
}

/** Runs the two graphs; their inputs and outputs are named in dragoman's formats/onnx.py. */
function graphs(encoder, decoder) {
  const numbers = (ids, shape) => new ort.Tensor("int64", BigInt64Array.from(ids, BigInt), shape);
  return {
    async encode(ids) {
      const given = { source_ids: numbers(ids, [1, ids.length]) };
      Object.assign(given, await encoder.run(given));
      const [layers, rows, heads, , width] = given.memory_keys.dims;
      for (const name of ["past_keys", "past_values"]) {
        const shape = [layers, rows, heads, 0, width];
        given[name] = new ort.Tensor("float32", new Float32Array(0), shape);
      }
      return given;
    },
    async step(state, id) {
      const found = await decoder.run({ ...state, ids: numbers([id], [1]) });
      state.past_keys = found.present_keys;
      state.past_values = found.present_values;
      return found.logits.data;
    },
  };
}

async function translate(number, text, direction) {
  const started = performance.now();
  const parts = translator.parts(text);
  const of = parts.filter(([, isSentence]) => isSentence).length;
  let written = "";
  let done = 0;
  for (const [part, isSentence] of parts) {
    if (number !== latest) return;
    written += isSentence ? await translator.translate(part, direction) : part;
    if (!isSentence) continue;
    done += 1;
    postMessage({ kind: "part", number, text: written, done, of });
    await new Promise((resolve) => setTimeout(resolve)); // a newer text may be waiting
  }
  const seconds = (performance.now() - started) / 1000;
  postMessage({ kind: "done", number, text: written, sentences: of, seconds });
}

addEventListener("message", async ({ data }) => {
  latest = data.number;
  try {
    await (data.kind === "load" ? load() : translate(data.number, data.text, data.direction));
  } catch (error) {
    postMessage({ kind: "failed", number: data.number, problem: error.message || String(error) });
  }
});
