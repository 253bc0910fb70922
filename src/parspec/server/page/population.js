// Draws the particles of one answer: a column for each cycle, in it a row for each particle.

const COLUMNS = 40; // older cycles are taken out: their text is in the trunk
const TRUNK = 400; // characters of the trunk shown

const element = (name, className = "", text = "") => {
  const made = document.createElement(name);
  made.className = className;
  made.textContent = text;
  return made;
};

const vector = (name, attributes) => {
  const made = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  return made;
};

/** Height of a row in pixels: few particles get more room. */
const laneHeight = (size) => (size <= 10 ? 32 : size <= 20 ? 26 : 22);

/** Spaces and line ends as signs that can be seen. */
const visible = (text) => text.replaceAll("\n", "⏎").replaceAll("\t", "⇥").replace(/^ | $/g, "·") || "∅";

/** As the height of a row's bar; the root lets small weights be told apart. */
const showWeight = (row, weight) => row.style.setProperty("--weight", Math.sqrt(weight));

export class PopulationView {
  /** Elements by id: lanes, reading, ess, size, and the counters. */
  constructor(parts) {
    this.parts = parts;
    this.reset();
  }

  /** Begin anew, for another answer. */
  reset() {
    this.cycles = 0;
    this.grown = 0;
    this.resamplings = 0;
    this.ess = [];
    this.size = null;
    this.firstText = null;
    this.tokens = null;
    this.text = "";
    this.waiting = [];
    this.started = performance.now();
    this.ended = null;
    this.trunk = element("div", "trunk-cell");
    this.parts.lanes.replaceChildren();
    this.parts.ess.replaceChildren();
    this.#showCounters();
  }

  /** Take a chunk of the answer; drawing waits for the next frame. */
  take(chunk) {
    const choice = chunk.choices[0];
    if (chunk.usage) this.tokens = chunk.usage.completion_tokens;
    const text = choice?.delta.content ?? "";
    if (text && this.firstText === null) this.firstText = performance.now() - this.started;
    this.text += text;
    this.waiting.push(...(choice?.population ?? []));
    if (!this.frame) this.frame = requestAnimationFrame(() => this.#draw());
  }

  /** The answer is complete, or was stopped. */
  end() {
    this.ended = performance.now();
    if (!this.frame) this.frame = requestAnimationFrame(() => this.#draw());
  }

  /** Tokens a second, from the question on. */
  get rate() {
    const seconds = ((this.ended ?? performance.now()) - this.started) / 1000;
    return (this.tokens ?? this.grown) / seconds;
  }

  #draw() {
    this.frame = null;
    const { lanes } = this.parts;
    // Someone who has scrolled back is reading: do not pull the view away.
    const follows = lanes.scrollLeft + lanes.clientWidth > lanes.scrollWidth - 40;
    if (this.waiting.length && !this.trunk.isConnected) lanes.append(this.trunk);
    for (const cycle of this.waiting.splice(0)) {
      this.#count(cycle);
      lanes.append(this.#column(cycle));
    }
    while (lanes.children.length > COLUMNS + 1) lanes.children[1].remove();
    this.trunk.textContent = (this.text.length > TRUNK ? "…" : "") + this.text.slice(-TRUNK);
    this.trunk.scrollTop = this.trunk.scrollHeight;
    if (follows) lanes.scrollLeft = lanes.scrollWidth;
    this.#showCounters();
    this.#showEss();
  }

  #count(cycle) {
    this.cycles += 1;
    this.grown += Math.max(...cycle.appended.map((row) => row.length));
    this.resamplings += cycle.resampled ? 1 : 0;
    if (this.size === null) {
      this.size = cycle.drafted.length;
      this.lane = laneHeight(this.size);
      this.parts.lanes.style.setProperty("--lane", `${this.lane}px`);
    }
    if (cycle.ess !== null) this.ess.push(cycle.ess);
  }

  #column(cycle) {
    const column = element("div", "cycle grow");
    column.tabIndex = 0;
    const reading = this.#reading(cycle);
    column.setAttribute("aria-label", reading);
    for (const event of ["mouseenter", "focus"]) {
      column.addEventListener(event, () => (this.parts.reading.textContent = reading));
    }
    if (cycle.drafted.some((row) => row.length)) column.append(this.#drafts(cycle), links(cycle, this.lane));
    column.append(this.#bonuses(cycle));
    return column;
  }

  /** Rows as the draft wrote them: kept tokens, dropped ones, and rows without descendants. */
  #drafts(cycle) {
    const rows = element("div", "rows");
    const ancestors = new Set(cycle.ancestors);
    cycle.drafted.forEach((tokens, i) => {
      const row = element("div", ancestors.has(i) ? "row" : "row dead");
      showWeight(row, cycle.cut_weights[i]);
      tokens.forEach((token, k) => row.append(element("span", k < cycle.kept ? "" : "dropped", visible(token))));
      rows.append(row);
    });
    return rows;
  }

  /** Particles after the cycle: what the large model added to each. */
  #bonuses(cycle) {
    const rows = element("div", "rows");
    cycle.appended.forEach((tokens, i) => {
      const row = element("div", cycle.finished[i] ? "row finished" : "row");
      showWeight(row, cycle.weights[i]);
      const drafted = cycle.drafted[cycle.ancestors[i]].slice(0, cycle.kept).length;
      for (const token of tokens.slice(drafted)) row.append(element("span", "bonus", visible(token)));
      rows.append(row);
    });
    return rows;
  }

  #reading(cycle) {
    const drafted = Math.max(...cycle.drafted.map((row) => row.length));
    const parts = [`Cycle ${this.cycles}`];
    if (drafted) parts.push(`kept ${cycle.kept} of ${drafted} drafted tokens`);
    if (cycle.ess !== null) parts.push(`effective sample size ${cycle.ess.toFixed(2)} of ${cycle.drafted.length}`);
    if (cycle.resampled) parts.push(`resampled: ${new Set(cycle.ancestors).size} rows have descendants`);
    if (cycle.num_final) parts.push(`${cycle.num_final} tokens became final`);
    if (cycle.ess !== null) parts.push(`weights ${cycle.cut_weights.map((w) => w.toFixed(2)).join(" ")}`);
    return parts.join(" · ");
  }

  #showCounters() {
    const { parts } = this;
    const known = this.cycles > 0;
    parts.rate.textContent = known ? this.rate.toFixed(1) : "–";
    parts["per-cycle"].textContent = known ? (this.grown / this.cycles).toFixed(1) : "–";
    parts.first.textContent = this.firstText === null ? "–" : `${(this.firstText / 1000).toFixed(1)} s`;
    parts.cycles.textContent = known ? this.cycles : "–";
    parts.resamplings.textContent = known ? this.resamplings : "–";
    parts.size.textContent = this.size ?? "N";
  }

  #showEss() {
    const { ess } = this.parts;
    if (!this.ess.length) return;
    const y = (value) => 88 - (86 * value) / this.size;
    const x = (i) => (600 * (i + 0.5)) / Math.max(this.ess.length, 20);
    const points = this.ess.map((value, i) => `${x(i).toFixed(1)},${y(value).toFixed(1)}`).join(" ");
    const half = y(this.size / 2);
    ess.replaceChildren(vector("line", { x1: 0, x2: 600, y1: half, y2: half }), vector("polyline", { points }));
  }
}

/** Lines from each particle's ancestor to it. */
function links(cycle, lane) {
  const height = lane * Math.max(cycle.drafted.length, cycle.ancestors.length);
  const svg = vector("svg", { class: "links", width: 26, height, "aria-hidden": "true" });
  cycle.ancestors.forEach((ancestor, i) => {
    const [from, to] = [ancestor, i].map((row) => (row + 0.5) * lane);
    const path = vector("path", { d: `M0 ${from} C13 ${from} 13 ${to} 26 ${to}` });
    if (ancestor !== i) path.setAttribute("class", "moved");
    svg.append(path);
  });
  return svg;
}
