// The picture: times to places, what shares a place, and the elements of a lane. No text becomes markup here: elements
// are made one by one, and texts are set as text.
const DATA = JSON.parse(document.getElementById('data').textContent);
const ROW = 24, BAR = 16, TOP = 4, SMALL = 13;
const items = DATA.items.map((f, id) => ({
  id, group: f[0], lane: { index: f[1], name: DATA.groups[f[0]].lanes[f[1]] }, row: f[2], at: f[3], end: f[3] + f[4], tint: f[5], label: DATA.texts[f[6]],
  asked: DATA.texts[f[7]], answer: DATA.texts[f[8]], container: DATA.texts[f[9]], call: DATA.texts[f[10]], point: f[11],
  open: f[12] === 1,
}));
const failures = DATA.failures.map(f => ({ item: items[f[0]], what: DATA.texts[f[1]], why: DATA.texts[f[2]], at: f[3] }));
const breaks = DATA.breaks, last = breaks[breaks.length - 1];
const isCall = item => item.lane.name === 'CRI calls';
const short = text => text.replace(/\b([0-9a-f]{13})[0-9a-f]{51}\b/g, '$1');
const $ = id => document.getElementById(id);

function make(name, attributes, parent, text) {
  const svg = ['svg', 'g', 'rect', 'path', 'text', 'line', 'defs', 'pattern'].includes(name);
  const element = svg ? document.createElementNS('http://www.w3.org/2000/svg', name) : document.createElement(name);
  for (const key in attributes) element.setAttribute(key, attributes[key]);
  if (text !== undefined) element.textContent = text;
  if (parent) parent.append(element);
  return element;
}

// The piece of the scale that holds a value: 0 asks by time, 1 by place.
function piece(value, by) {
  let low = 0, high = breaks.length - 2;
  while (low < high) {
    const middle = (low + high + 1) >> 1;
    if (breaks[middle][by] <= value) low = middle; else high = middle - 1;
  }
  return low;
}
function between(value, from, to) {
  const i = piece(value, from), a = breaks[i], b = breaks[i + 1];
  return a[to] + (value - a[from]) / (b[from] - a[from]) * (b[to] - a[to]);
}
const place = time => between(time, 0, 1);
const time = at => between(at, 1, 0);

// What is seen: places from and to, with room at both ends; pixels across.
const view = { from: 0, to: 1, width: 1000 };
const MARGIN = last[1] * 0.015;
const WHOLE = { from: -MARGIN, to: last[1] + MARGIN * 3 };
const x = at => (place(at) - view.from) / (view.to - view.from) * view.width;

// One unit for all times of a page: the axis names it.
const UNIT = last[0] < 6e7 ? 's' : last[0] < 3.6e9 ? 'min:s' : 'h:min:s';
function clock(us, digits = 3) {
  const s = Math.floor(us / 10 ** (6 - digits)) / 10 ** digits, minutes = Math.floor(s / 60);
  if (UNIT === 's') return s.toFixed(digits);
  const rest = (s % 60).toFixed(digits).padStart(digits ? digits + 3 : 2, '0');
  return UNIT === 'min:s' ? `${minutes}:${rest}` : `${Math.floor(minutes / 60)}:${String(minutes % 60).padStart(2, '0')}:${rest}`;
}
const moment = us => clock(us) + (UNIT === 's' ? ' s' : '');
function long(us) {
  if (us < 1000) return `${us} µs`;
  if (us < 1e6) return `${(us / 1000).toPrecision(3)} ms`;
  if (us < 6e7) return `${(us / 1e6).toPrecision(3)} s`;
  if (us < 3.6e9) return `${Math.round(us / 6e7)} min`;
  return us < 1.728e11 ? `${Math.round(us / 3.6e9)} h` : `${Math.round(us / 8.64e10)} days`;
}

// Ticks where there is room, round numbers only; none in what is folded.
function ticks() {
  const found = [], perPixel = (view.to - view.from) / view.width;
  let step = 1;
  for (const candidate of [1, 2, 5].flatMap(n => [...Array(15).keys()].map(k => n * 10 ** k)).sort((a, b) => a - b)) {
    step = candidate;
    if (step / perPixel >= 80) break;
  }
  let free = -1;
  for (let i = 0; i + 1 < breaks.length; i++) {
    if (DATA.folds.includes(i) || breaks[i + 1][1] < view.from || breaks[i][1] > view.to) continue;
    const begin = Math.max(breaks[i][0], time(Math.max(view.from, breaks[i][1])));
    const end = Math.min(breaks[i + 1][0], begin + (view.to - view.from));
    for (let t = Math.ceil(begin / step) * step; t <= end; t += step) {
      const at = x(t);
      if (at < free || at > view.width) continue;
      found.push({ at, text: clock(t, Math.max(0, 6 - Math.floor(Math.log10(step)))) });
      free = at + 70;
    }
  }
  return found;
}
function foldsSeen() {
  return DATA.folds.map(i => ({ from: x(breaks[i][0]), to: x(breaks[i + 1][0]), took: breaks[i + 1][0] - breaks[i][0] }))
    .filter(fold => fold.to > 0 && fold.from < view.width);
}

const pen = document.createElement('canvas').getContext('2d');
pen.font = '11.5px system-ui, sans-serif';
const widths = new Map();
function widthOf(text) {
  if (!widths.has(text)) widths.set(text, pen.measureText(text).width * 1.04);
  return widths.get(text);
}
// As much of a text as there is room for; nothing if that says nothing.
function fitting(text, room, least) {
  if (widthOf(text) <= room) return text;
  let letters = Math.floor(text.length * room / widthOf(text)) - 1;
  while (letters >= least && widthOf(text.slice(0, letters) + '…') > room) letters--;
  return letters < least ? '' : text.slice(0, letters) + '…';
}

// Events that are too close together become one cluster: as wide as a single one, so that no two overlap. Its worst
// event is its head, which gives it mark, colour and label.
function clusters(list) {
  const found = [];
  for (const item of list) {
    const from = x(item.at), to = Math.max(x(item.end), from + SMALL);
    if (to < 0 || from > view.width) continue;
    const before = found[found.length - 1];
    const small = x(item.end) - from <= SMALL;
    if (before && small && before.small && from < before.to) {
      before.items.push(item);
      if (item.tint > before.tint) { before.tint = item.tint; before.head = item; }
    } else {
      found.push({ from, to, small, tint: item.tint, head: item, items: [item], row: item.row });
    }
  }
  return found;
}

const MARKS = { 4: '! ', 5: '✗ ' };
const WORDS = ['', '', 'ok', '', 'trouble', 'failed'];
function named(cluster) {
  const { head } = cluster, word = WORDS[head.tint];
  const one = [short(head.label), head.label.includes(word) ? '' : word, head.label.includes(head.answer) ? '' : short(head.answer), `at ${moment(head.at)}`];
  if (head.end > head.at) one.push(`took ${long(head.end - head.at)}`);
  const text = one.filter(part => part).join(', ');
  return cluster.items.length > 1 ? `${cluster.items.length} events, ${head.tint >= 4 ? 'the worst' : 'such as'}: ${text}` : text;
}

// The room for a label: where labels, and marks of at least this tint, end before a cluster and begin after it.
function roomOf(cluster, row, labels, least) {
  let before = 0, next = view.width;
  for (const other of [...row.filter(other => other !== cluster && other.tint >= least), ...labels]) {
    if (other.from >= cluster.from) next = Math.min(next, other.from);
    else before = Math.max(before, other.to);
    if (other.from < cluster.from && other.to > cluster.to) next = cluster.from;
  }
  return [before, next];
}
// Behind those that are drawn already.
function drawCluster(svg, cluster, y, row, labels) {
  const { head, tint } = cluster, width = Math.min(cluster.to, view.width + 20) - Math.max(cluster.from, -20);
  const left = Math.max(cluster.from, -20), middle = y + BAR / 2;
  const g = make('g', {
    class: `item t${tint}${head.open ? ' unanswered' : ''}`, tabindex: -1, role: 'button', 'aria-label': named(cluster),
  });
  svg.insertBefore(g, svg.querySelector('.item'));
  g.cluster = cluster;
  cluster.element = g;
  if (cluster.small && cluster.items.length === 1 && tint < 4 && !isCall(head)) {
    const c = left + SMALL / 2, r = tint === 0 ? 4 : 6;
    make('path', { class: 'body', d: `M${c} ${middle - r}l${r} ${r}l${-r} ${r}l${-r} ${-r}z` }, g);
  } else {
    make('rect', { class: 'body', x: left, y, width, height: BAR, rx: 3 }, g);
  }
  make('rect', { class: 'ring', x: left - 2.5, y: y - 2.5, width: width + 5, height: BAR + 5, rx: 5 }, g);
  let used = 5;
  if (tint === 5) {
    const c = left + SMALL / 2;
    make('path', { class: 'glyph', d: `M${c - 3.5} ${middle - 3.5}l7 7m0 -7l-7 7` }, g);
    used = SMALL + 3;
  } else if (tint === 4) {
    make('path', { class: 'glyph', d: `M${left + SMALL / 2} ${middle - 5}v6m0 4v.1` }, g);
    used = SMALL + 3;
  }
  const many = cluster.items.length;
  let text = short(head.label);
  if (many > 1 && tint < 4) {
    make('text', { class: 'in', x: left + width / 2, y: middle + 4, 'text-anchor': 'middle' }, g, many < 100 ? many : '…');
    text = [...new Set(cluster.items.map(item => short(item.label)))].join(', ');
  } else if (many > 1 && !svg.folded) {
    text = `${text}, and ${many - 1} more`;
  }
  const start = Math.max(left, 0) + used;
  const inside = many > 1 ? '' : fitting(text, left + width - start - 4, 7);
  const after = Math.max(left + width, 0) + 4;
  const bold = tint === 5 ? 0.9 : 1;
  let [before, next] = roomOf(cluster, row, labels, 0), outside = fitting(text, (next - after - 4) * bold, 11);
  // The label of a failure is on the other side rather than cut, and covers lesser marks rather than being left out.
  const fits = widthOf(text) <= (left - before - 10) * bold;
  if (tint >= 4 && !outside && !fits) {
    [before, next] = roomOf(cluster, row, labels, 4);
    outside = fitting(text, (next - after - 4) * bold, 11);
  } else if (tint >= 4 && fits && outside !== text) outside = '';
  if (inside && (inside === text || !outside)) {
    make('text', { class: 'in', x: start, y: middle + 4 }, g, inside);
  } else if (outside) {
    make('text', { class: 'next', x: after, y: middle + 4 }, g, outside);
    labels.push({ from: after, to: after + widthOf(outside) / bold });
  } else if (tint >= 4 && left - before > 60) {
    const ahead = fitting(text, (left - before - 10) * bold, 7);
    make('text', { class: 'next', x: left - 5, y: middle + 4, 'text-anchor': 'end' }, g, ahead);
    labels.push({ from: left - 5 - widthOf(ahead) / bold, to: left - 5 });
  }
}

// Fills the svg of a lane, or of a folded pod: `lists` are its rows.
function drawRows(svg, lists) {
  svg.textContent = '';
  const height = lists.length * ROW;
  svg.setAttribute('height', height);
  svg.setAttribute('viewBox', `0 0 ${view.width} ${height}`);
  for (const fold of foldsSeen()) {
    make('rect', { class: 'fold', x: fold.from, y: 0, width: Math.max(2, fold.to - fold.from), height }, svg);
  }
  make('path', { class: 'grid', d: svg.ticks.map(t => `M${Math.round(t.at)} 0V${height}`).join('') || 'M0 0' }, svg);
  svg.rows = lists.map(clusters);
  // The worst first: it has the choice of room, and ends up on top.
  svg.rows.forEach((row, index) => {
    const labels = [];
    for (const cluster of [...row].sort((a, b) => b.tint - a.tint)) drawCluster(svg, cluster, index * ROW + TOP, row, labels);
  });
}

function drawAxis(svg) {
  svg.textContent = '';
  svg.setAttribute('height', 26);
  svg.setAttribute('viewBox', `0 0 ${view.width} 26`);
  const hatch = make('pattern', { id: 'hatch', width: 6, height: 6, patternUnits: 'userSpaceOnUse', patternTransform: 'rotate(45)' }, make('defs', {}, svg));
  make('line', { class: 'fold-line', x1: 0, y1: 0, x2: 0, y2: 6 }, hatch);
  let free = -1;
  for (const fold of foldsSeen()) {
    make('rect', { class: 'fold', x: fold.from, y: 0, width: Math.max(2, fold.to - fold.from), height: 26 }, svg);
    const text = `${long(fold.took)} quiet`, half = widthOf(text) / 2 + 2;
    const middle = Math.min(Math.max((fold.from + fold.to) / 2, half), view.width - half);
    if (middle - half < free) continue;
    make('text', { x: middle, y: 10, 'text-anchor': 'middle' }, svg, text);
    free = middle + half;
  }
  for (const tick of ticks()) {
    make('path', { class: 'grid', d: `M${Math.round(tick.at)} 14V26` }, svg);
    make('text', { x: tick.at + 4, y: 23 }, svg, tick.text);
  }
}
