// The part of Markdown that models write most, as elements: nothing of a text becomes HTML.

const SPANS = /(`+)(.+?)\1|\*\*(.+?)\*\*|\*([^\s*](?:[^*]*[^\s*])?)\*/g;

function spans(text) {
  const found = [];
  let end = 0;
  for (const match of text.matchAll(SPANS)) {
    found.push(text.slice(end, match.index));
    if (match[2] !== undefined) found.push(el("code", "", match[2]));
    else found.push(match[3] !== undefined ? el("strong", "", match[3]) : el("em", "", match[4]));
    end = match.index + match[0].length;
  }
  found.push(text.slice(end));
  return found;
}

const ITEM = /^\s*(?:[-*+]|(\d+)[.)])\s+(.*)$/;

function block(lines) {
  const head = /^#{1,6}\s+(.*)$/.exec(lines[0]);
  if (head) {
    const rest = lines.slice(1);
    return [el("h3", "", ...spans(head[1])), ...(rest.length ? block(rest) : [])];
  }
  if (ITEM.test(lines[0])) {
    const items = [];
    for (const line of lines) {
      const item = ITEM.exec(line);
      if (item) items.push(item[2]);
      else items[items.length - 1] += `\n${line.trim()}`;
    }
    const numbered = ITEM.exec(lines[0])[1];
    const list = numbered === undefined ? el("ul", "") : el("ol", "list");
    if (numbered > 1) list.start = Number(numbered);
    list.append(...items.map((each) => el("li", "", ...spans(each))));
    return [list];
  }
  return [el("p", "", ...spans(lines.join("\n")))];
}

/** Return the elements of a text; a fence that is still open is code too. */
function markdown(text) {
  const found = [];
  let lines = [];
  let fence = null;
  const close = () => {
    if (lines.length) found.push(...block(lines));
    lines = [];
  };
  const code = () => found.push(el("pre", "", el("code", "", lines.join("\n"))));
  for (const line of text.split("\n")) {
    const mark = /^\s*(```+|~~~+)/.exec(line);
    if (fence !== null) {
      if (mark && mark[1].startsWith(fence)) { code(); lines = []; fence = null; } else lines.push(line);
    } else if (mark) { close(); fence = mark[1]; } else if (!line.trim()) close();
    else lines.push(line);
  }
  if (fence !== null) code(); else close();
  return found;
}
