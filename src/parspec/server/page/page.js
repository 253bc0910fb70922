// The page: a conversation, its settings, and a view of the particles that write the answers.

import { PopulationView } from "./population.js";
import { ask, servedModel } from "./stream.js";

const byId = Object.fromEntries([...document.querySelectorAll("[id]")].map((part) => [part.id, part]));
const view = new PopulationView(byId);
const NUMBERS = [
  "num_particles",
  "num_draft_tokens",
  "cut_threshold",
  "commit_lag",
  "temperature",
  "max_tokens",
  "seed",
];

let model = null;
let conversation = [];
let running = null; // the AbortController of the answer being written

byId.key.value = sessionStorage.getItem("key") ?? "";
byId.key.addEventListener("change", () => {
  sessionStorage.setItem("key", byId.key.value);
  connect();
});
byId.ask.addEventListener("submit", (event) => {
  event.preventDefault();
  send();
});
byId.message.addEventListener("keydown", (event) => {
  // isComposing: Enter may also end the writing of a character.
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
    event.preventDefault();
    send();
  }
});
document.addEventListener("keydown", (event) => event.key === "Escape" && running?.abort());
byId.stop.addEventListener("click", () => running?.abort());
byId["new-chat"].addEventListener("click", () => {
  running?.abort();
  conversation = [];
  byId.messages.replaceChildren();
  byId.message.focus();
});
connect();

async function connect() {
  try {
    model = await servedModel(byId.key.value);
    const draft = model.draft ? `, drafted by ${model.draft}` : "";
    byId.models.textContent = `${model.id}${draft} · ${model.method} unless a question says otherwise`;
    byId.num_particles.placeholder = model.num_particles;
    byId.num_draft_tokens.placeholder = model.num_draft_tokens;
    fail(null);
  } catch (error) {
    byId.models.textContent = "not connected";
    fail(error);
  }
}

async function send() {
  const text = byId.message.value.trim();
  if (!text || running) return;
  fail(null);
  const asked = [...conversation, { role: "user", content: text }];
  running = new AbortController();
  setBusy(true);
  byId.message.value = "";
  addMessage("user", text);
  const answers = addMessage("answers");
  try {
    if (model === null) await connect();
    const body = request(asked);
    view.reset();
    const main = await answer(body, answers, view);
    conversation = [...asked, { role: "assistant", content: main.text }];
    if (byId.compare.checked && !running.signal.aborted) {
      // One after the other: side by side they would share the machine, and neither time would be true.
      const plain = await answer({ ...body, method: "autoregressive" }, answers, new Clock());
      const ratio = main.rate / plain.rate;
      if (Number.isFinite(ratio)) plain.by.textContent += ` · the other is ${ratio.toFixed(1)} times as fast`;
    }
  } catch (error) {
    fail(error);
    byId.message.value ||= text; // nothing typed is lost
  } finally {
    if (!answers.children.length) answers.remove();
    running = null;
    setBusy(false);
    byId.message.focus();
  }
}

/** What is sent: the conversation and the settings that have been made. */
function request(messages) {
  const system = byId.system.value.trim();
  const body = { model: model?.id ?? "", messages: [...(system ? [{ role: "system", content: system }] : []), ...messages] };
  for (const name of NUMBERS) if (byId[name].value !== "") body[name] = Number(byId[name].value);
  if (byId.method.value) body.method = byId.method.value;
  return body;
}

/** Show one answer as it is written; a stopped one keeps what has been shown. */
async function answer(body, container, watcher) {
  const shown = addMessage("assistant waiting", "", container);
  const by = document.createElement("span");
  by.className = "by";
  by.textContent = body.method ?? model?.method ?? "";
  const shownText = document.createTextNode("");
  shown.append(by, shownText);
  let text = "";
  let frame = null;
  const show = () => {
    frame = null;
    shownText.data = text;
    byId.messages.scrollTop = byId.messages.scrollHeight;
  };
  try {
    for await (const chunk of ask(body, byId.key.value, running.signal)) {
      watcher.take(chunk);
      text += chunk.choices[0]?.delta.content ?? "";
      frame ??= requestAnimationFrame(show); // however many pieces come between two frames
    }
  } catch (error) {
    if (error.name !== "AbortError") {
      if (!text) shown.remove();
      throw error;
    }
  } finally {
    watcher.end();
    show();
    shown.classList.remove("waiting");
  }
  by.textContent += ` · ${watcher.rate.toFixed(1)} tokens/s`;
  return { text, rate: watcher.rate, by };
}

/** Measures an answer that is not drawn. */
class Clock {
  started = performance.now();
  tokens = 0;
  grown = 0;

  take(chunk) {
    for (const cycle of chunk.choices[0]?.population ?? []) this.grown += cycle.appended[0].length;
    if (chunk.usage) this.tokens = chunk.usage.completion_tokens;
  }

  end() {
    this.ended = performance.now();
  }

  get rate() {
    return ((this.tokens || this.grown) * 1000) / (this.ended - this.started);
  }
}

function addMessage(kind, text = "", container = byId.messages) {
  const message = document.createElement("div");
  message.className = kind === "answers" ? kind : `message ${kind}`;
  message.textContent = text;
  container.append(message);
  byId.messages.scrollTop = byId.messages.scrollHeight;
  return message;
}

function setBusy(busy) {
  byId.send.disabled = busy;
  byId.stop.disabled = !busy;
}

function fail(error) {
  byId.error.hidden = error === null;
  byId.error.textContent = error === null ? "" : error.message;
}
