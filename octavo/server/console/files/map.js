// The KV memory of an engine as a map: a cell for one block, or for several, in reading order.

const CELL = 9;
const GAP = 2;

class BlockMap {
  constructor(title) {
    this.canvas = el("canvas", "");
    this.canvas.setAttribute("role", "img");
    this.text = el("p", "");
    this.element = el("div", "map", title ? el("h3", "", title) : null, this.canvas, this.text);
    this.requests = [];
    this.last = null;
    new ResizeObserver(() => this.draw()).observe(this.element);
  }

  show(engine, requests) {
    this.last = engine;
    const usedShare = engine.blocks ? 1 - Math.min(engine.blocks, engine.free_blocks) / engine.blocks : 0;
    const tokens = engine.blocks * engine.block_tokens;
    let kept = "";
    if (engine.map) {
      const cells = engine.map.kept.length;
      kept = `, ${Math.round(engine.map.kept.reduce((sum, each) => sum + each, 0) / Math.max(1, cells))} % kept for later prompts`;
    }
    const size = engine.map && engine.map.cell_blocks > 1 ? `, ${count(engine.map.cell_blocks)} to a cell` : "";
    const text = `${Math.round(100 * usedShare)} % in use${kept}, of ${count(engine.blocks)} blocks (${count(tokens)} tokens${size})`;
    put(this.text, engine.map ? text : `${text}. Several keys share this server, so places are not shown.`);
    this.canvas.setAttribute("aria-label", `KV memory: ${text}`);
    this.canvas.hidden = !engine.map;
    this.requests = requests;
    this.draw();
  }

  choose(id) {
    this.chosenId = id;
    this.draw();
  }

  draw() {
    const map = this.last?.map;
    const width = this.element.clientWidth;
    if (!map || !width) return;
    const style = getComputedStyle(document.documentElement);
    const colour = (name) => style.getPropertyValue(`--${name}`).trim();
    const columns = Math.max(8, Math.floor((width + GAP) / (CELL + GAP)));
    const rows = Math.ceil(map.used.length / columns);
    const scale = devicePixelRatio || 1;
    const height = rows * (CELL + GAP);
    this.canvas.width = Math.round(width * scale);
    this.canvas.height = Math.round(height * scale);
    this.canvas.style.height = `${height}px`;
    const pen = this.canvas.getContext("2d");
    pen.scale(scale, scale);
    const [used, kept, rest, chosen] = [colour("decode"), colour("cached"), colour("rest"), colour("accent")];
    const own = new Set(this.requests.filter((each) => each.id === this.chosenId).flatMap((each) => each.cells));
    map.used.forEach((share, index) => {
      const x = (index % columns) * (CELL + GAP);
      const y = Math.floor(index / columns) * (CELL + GAP);
      pen.fillStyle = rest;
      pen.fillRect(x, y, CELL, CELL);
      const keptHeight = (CELL * map.kept[index]) / 100;
      const usedHeight = Math.max(share ? 1.5 : 0, (CELL * share) / 100);
      pen.fillStyle = kept;
      pen.fillRect(x, y + CELL - Math.min(CELL, keptHeight + usedHeight), CELL, keptHeight);
      pen.fillStyle = own.has(index) ? chosen : used;
      pen.fillRect(x, y + CELL - usedHeight, CELL, usedHeight);
    });
  }
}
