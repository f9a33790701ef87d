// Plots of the last two minutes: one or two lines over time, drawn as SVG paths.

const POINTS = 240;
const SVG = "http://www.w3.org/2000/svg";

function svg(name, attributes) {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  return made;
}

/** A plot with up to two lines; `write` makes the text of a value. */
class Plot {
  constructor(title, names, write, most = null) {
    this.title = title;
    this.names = names;
    this.write = write;
    this.most = most;
    this.lines = names.map(() => []);
    this.now = el("span", "");
    this.paths = names.map((_, index) => svg("path", { class: index ? "b" : "a" }));
    this.svg = svg("svg", { viewBox: `0 0 ${POINTS} 100`, preserveAspectRatio: "none", role: "img" });
    this.svg.append(svg("line", { x1: 0, x2: POINTS, y1: 99.5, y2: 99.5 }), ...this.paths);
    this.top = el("span", "");
    const key = names.length > 1 ? names.map((name, index) => el("span", index ? "b-key" : "a-key", name)) : [];
    this.element = el(
      "figure", "plot", el("h3", "", title, this.now), this.svg, el("p", "", el("span", "", ...key.flatMap((each) => [each, " "])), this.top),
    );
    this.element.style.margin = "0";
  }

  /** Add a value for each line; null leaves a gap. */
  add(...values) {
    this.lines.forEach((line, index) => {
      line.push(values[index] ?? null);
      if (line.length > POINTS) line.shift();
    });
    const all = this.lines.flat().filter((each) => each !== null);
    const top = this.most ?? Math.max(...all, 1e-9) * 1.1;
    this.lines.forEach((line, index) => this.paths[index].setAttribute("d", this.path(line, top)));
    const shown = values.map((each) => (each === null || each === undefined ? "–" : this.write(each)));
    put(this.now, shown.join(" / "));
    put(this.top, all.length ? `up to ${this.write(Math.max(...all))} in 2 min` : "nothing yet");
    this.svg.setAttribute("aria-label", `${this.title}: ${this.names.map((name, index) => `${name} ${shown[index]}`).join(", ")}`);
  }

  path(line, top) {
    let text = "";
    let isDown = false;
    line.forEach((value, index) => {
      if (value === null) { isDown = false; return; }
      const x = index + POINTS - line.length;
      const y = (99 - 97 * Math.min(1, value / top)).toFixed(1);
      text += isDown ? `L${x} ${y}` : `M${x} ${y}h0`;  // a value between two gaps is a dot
      isDown = true;
    });
    return text;
  }

  clear() { this.lines = this.names.map(() => []); }
}
