// What a person does with the picture: open pods, go from event to event, zoom and pan, read.
const chart = $('chart'), panel = $('panel'), axis = document.querySelector('#axis svg');
const narrow = matchMedia('(max-width: 1000px)');
// The event that is read, whether with all that share its place, and whether the reader has asked for the panel where
// there is no room for both.
const now = { item: null, whole: false, asked: false, failure: 0 };

const groups = DATA.groups.map((group, index) => ({ ...group, index, items: [], lanes: group.lanes.map(name => ({ name, rows: [] })) }));
for (const item of items) {
  const group = groups[item.group], rows = group.lanes[item.lane.index].rows;
  group.items.push(item);
  while (rows.length <= item.row) rows.push([]);
  rows[item.row].push(item);
}
const pods = groups.filter(group => group.id), spaces = new Set(pods.map(group => group.name.split('/')[0]));
// A namespace that all share says nothing of each.
const nameOf = group => !group.id ? 'outside of pods'
  : pods.length > 1 && spaces.size === 1 ? group.name.split('/').slice(1).join('/') || group.name : group.name;

function build() {
  for (const group of groups) {
    const section = make('section', { class: 'group', 'aria-label': nameOf(group) }, $('groups'));
    const head = make('div', { class: 'lane head' }, section);
    const label = make('div', { class: 'label' }, head);
    const toggle = make('button', { class: 'toggle', type: 'button', title: `${nameOf(group)} ${group.id}` }, label);
    // Of a long name the end is always seen: pods of one deployment differ there.
    const name = nameOf(group), cut = group.id ? Math.max(0, name.length - 9) : name.length;
    const both = make('span', { class: 'name' }, toggle);
    make('span', { class: 'start' }, both, name.slice(0, cut));
    make('span', {}, both, name.slice(cut));
    const failed = failures.filter(f => f.item.group === group.index).length;
    if (failed) make('b', { 'aria-label': `${failed} failed` }, toggle, `✗ ${failed}`);
    toggle.onclick = () => { open(group, !group.open); draw(); };
    const lanes = make('div', { class: 'lanes' }, section);
    Object.assign(group, { section, toggle, lanesElement: lanes, failed });
    // Folded, a pod shows its calls, and what went wrong outside of those that failed.
    const bad = group.items.filter(item => isCall(item) && item.tint === 5);
    const calls = group.items.filter(item => isCall(item) || (item.tint >= 4 && !bad.some(call => call.at <= item.at && item.end <= call.end)));
    group.svgs = [rowsOf(head, [calls.length ? calls : group.items], `${nameOf(group)}, folded`)];
    group.svgs[0].folded = true;
    causeOf(group, head);
    for (const lane of group.lanes) {
      const row = make('div', { class: 'lane' }, lanes);
      make('div', { class: 'label', title: lane.name }, row, lane.name);
      group.svgs.push(rowsOf(row, lane.rows, `${nameOf(group)}, ${lane.name}`));
    }
    open(group, !DATA.many);
  }
}
// Under a folded pod: why it failed, or else its first trouble.
function causeOf(group, parent) {
  const index = failures.findIndex(f => f.item.group === group.index), trouble = group.items.find(item => item.tint === 4);
  if (index < 0 && !trouble) return;
  const { item, what, why } = failures[index] || { item: trouble, why: `${trouble.lane.name}: ${short(trouble.label)}` };
  const button = make('button', { class: `cause t${index < 0 ? 4 : 5}`, type: 'button', title: why }, parent, why || what);
  button.onclick = () => index < 0 ? read(item, true, true) : fail(index, true);
}
function rowsOf(parent, lists, label) {
  const svg = make('svg', { class: 'rows', role: 'group', 'aria-label': label, height: lists.length * ROW }, parent);
  svg.lists = lists;
  seen.observe(svg);
  return svg;
}
function open(group, yes) {
  group.open = yes;
  group.toggle.setAttribute('aria-expanded', yes);
  group.lanesElement.hidden = !yes;
  group.section.classList.toggle('open', yes);
  group.svgs[0].off = yes;
}
const isShown = svg => svg.getClientRects().length > 0 && !svg.off;

// Lanes are drawn when they come into sight, or when the keyboard comes to them.
let round = 0, marks = [];
const seen = new IntersectionObserver(changes => {
  for (const change of changes) {
    change.target.inSight = change.isIntersecting;
    if (change.isIntersecting) drawLane(change.target);
  }
}, { rootMargin: '200px' });
function drawLane(svg) {
  if (svg.round === round || !isShown(svg)) return;
  const had = svg.contains(document.activeElement);
  svg.round = round;
  svg.ticks = marks;
  drawRows(svg, svg.lists);
  const cluster = now.item && clusterOf(svg, now.item);
  if (cluster) {
    cluster.element.classList.add('current');
    cluster.element.setAttribute('tabindex', 0);
    if (had) cluster.element.focus({ preventScroll: true });
  } else if (had) {
    chart.focus({ preventScroll: true });
  }
}
const clusterOf = (svg, item) => svg.rows && svg.rows.flat().find(cluster => cluster.items.includes(item));

function draw() {
  round++;
  const width = axis.getBoundingClientRect().width;
  if (width < 10) return;
  view.width = width;
  marks = ticks();
  drawAxis(axis);
  for (const svg of document.querySelectorAll('svg.rows')) if (svg.inSight) drawLane(svg);
}
let waiting = false;
function drawSoon() {
  if (waiting) return;
  waiting = true;
  requestAnimationFrame(() => { waiting = false; draw(); });
}

// The view, never beyond the whole, never closer than a microsecond to five pixels.
function look(from, to) {
  const whole = WHOLE.to - WHOLE.from, length = Math.min(whole, Math.max(to - from, view.width / 5));
  view.from = Math.min(Math.max(from, WHOLE.from), WHOLE.to - length);
  view.to = view.from + length;
  drawSoon();
}
// Around a share of the width; without one around the event that is read, if it is in sight.
function zoom(factor, at) {
  if (at === undefined) {
    at = now.item ? x(now.item.at) / view.width : 0.5;
    if (at < 0 || at > 1) at = 0.5;
  }
  const length = view.to - view.from, fixed = view.from + at * length;
  look(fixed - at * length * factor, fixed + (1 - at) * length * factor);
}
const pan = share => look(view.from + share * (view.to - view.from), view.to + share * (view.to - view.from));
function lookAt(list) {
  const from = Math.min(...list.map(item => place(item.at))), to = Math.max(...list.map(item => place(item.end)));
  const room = Math.max((to - from) * 0.6, 500);
  look(from - room, to + room);
}

// An id as people read it, with a button that copies all of it.
function idIn(parent, id) {
  make('code', { title: id }, parent, id.slice(0, 13));
  const button = make('button', { class: 'copy', type: 'button', 'aria-label': `Copy the id ${id.slice(0, 13)}` }, parent, 'copy');
  button.onclick = () => {
    const area = make('textarea', {}, panel, id);
    area.select();
    button.textContent = document.execCommand('copy') ? 'copied' : 'not copied';
    area.remove();
    button.focus();
  };
}
function withIds(parent, text) {
  text.split(/\b([0-9a-f]{64})\b/).forEach((part, i) => i % 2 ? idIn(parent, part) : parent.append(part));
}
function line(list, term, text) {
  if (!text) return;
  make('dt', {}, list, term);
  withIds(make('dd', {}, list), text);
}
function buttons(parent, list, named) {
  const ul = make('ul', {}, parent);
  for (const item of list.slice(0, 40)) {
    make('button', { type: 'button' }, make('li', {}, ul), (MARKS[item.tint] || '') + short(named(item))).onclick = () => read(item, true);
  }
  if (list.length > 40) make('li', {}, ul, `and ${list.length - 40} more: zoom in`);
}
function show(cluster) {
  const item = cluster.items.length === 1 ? cluster.items[0] : null, head = item || cluster.head;
  panel.textContent = '';
  panel.className = `t${head.tint}`;
  panel.hidden = narrow.matches && !now.asked;
  make('button', { class: 'close', type: 'button', 'aria-label': 'Close' }, panel, '×').onclick = leave;
  const group = groups[head.group], lane = head.lane.name;
  withIds(make('h2', { 'data-mark': (MARKS[head.tint] || '').trim() }, panel), item ? head.label : `${cluster.items.length} events`);
  const at = new Date(DATA.begun + head.at / 1000);
  const clock = isNaN(at) ? '' : ` · ${at.toISOString().slice(11, 23)} UTC`;
  make('p', {}, panel, `${lane} · ${moment(head.at)}${head.end > head.at ? ` · ${long(head.end - head.at)}` : ''}${clock}`);
  if (!item) {
    buttons(panel, [...cluster.items].sort((a, b) => b.tint - a.tint || a.at - b.at), other => other.label);
    return;
  }
  const list = make('dl', {}, panel);
  line(list, 'Request', item.asked);
  line(list, 'Answer', item.answer);
  const answers = items.filter(other => other.point === item.id);
  if (answers.length) {
    make('dt', {}, list, 'Plugins, in order');
    buttons(make('dd', {}, list), answers, other => `${other.lane.name}  ${other.answer}`);
  }
  line(list, 'Pod', group.id && `${group.name}\n${group.id}`);
  line(list, 'Container', item.container);
  line(list, 'In the course of', item.call !== item.label && item.call);
}

// Makes an event the one that is read: its pod is opened, its lane drawn, the focus set on it if wished.
function read(item, focus, asked) {
  const group = groups[item.group];
  now.item = item;
  now.whole = false;
  now.asked = now.asked || Boolean(asked);
  if (!group.open) { open(group, true); draw(); }
  if (x(item.at) < 0 || x(item.at) > view.width - 10) {
    const half = (view.to - view.from) / 2;
    look(place(item.at) - half, place(item.at) + half);
    draw();
  }
  const svg = group.svgs[item.lane.index + 1];
  drawLane(svg);
  const cluster = clusterOf(svg, item);
  if (!cluster) return;
  if (focus) {
    cluster.element.focus({ preventScroll: true });
    cluster.element.scrollIntoView({ block: 'nearest', inline: 'nearest' });
  }
  mark(cluster);
  show({ items: [item], head: item });
}
function mark(cluster) {
  for (const old of document.querySelectorAll('.item.current')) {
    old.classList.remove('current');
    old.setAttribute('tabindex', -1);
  }
  cluster.element.classList.add('current');
  cluster.element.setAttribute('tabindex', 0);
}
function leave() {
  const svg = now.item && groups[now.item.group].svgs[groups[now.item.group].open ? now.item.lane.index + 1 : 0];
  now.asked = false;
  if (narrow.matches) panel.hidden = true;
  const cluster = svg && clusterOf(svg, now.item);
  if (cluster) cluster.element.focus({ preventScroll: true });
}
function fail(index, asked) {
  now.failure = (index + failures.length) % failures.length;
  const { item, what, why, at } = failures[now.failure], group = groups[item.group];
  $('what').textContent = `${what}${group.id ? ` in ${group.name}` : ''}`;
  $('when').textContent = `at ${moment(at)}${failures.length > 1 ? `, failure ${now.failure + 1} of ${failures.length}` : ''}`;
  $('why').textContent = why;
  read(item, true, asked);
}

// Left and right by time, up and down by lane.
function step(from, key) {
  const svg = from.ownerSVGElement, cluster = from.cluster;
  if (key === 'ArrowLeft' || key === 'ArrowRight') {
    const row = svg.rows[svg.rows.findIndex(row => row.includes(cluster))];
    const next = row[row.indexOf(cluster) + (key === 'ArrowRight' ? 1 : -1)];
    if (next) next.element.focus();
    return;
  }
  const down = key === 'ArrowDown', lanes = [...document.querySelectorAll('svg.rows')].filter(isShown);
  const centre = (cluster.from + cluster.to) / 2, far = other => Math.abs((other.from + other.to) / 2 - centre);
  const nearest = row => row.reduce((a, b) => far(b) < far(a) ? b : a);
  let lane = lanes.indexOf(svg), row = svg.rows.findIndex(row => row.includes(cluster));
  for (;;) {
    row += down ? 1 : -1;
    if (row < 0 || row >= lanes[lane].rows.length) {
      lane += down ? 1 : -1;
      if (!lanes[lane]) return;
      drawLane(lanes[lane]);
      row = down ? 0 : lanes[lane].rows.length - 1;
    }
    if (lanes[lane].rows[row].length) {
      const { element } = nearest(lanes[lane].rows[row]);
      element.focus({ preventScroll: true });
      element.scrollIntoView({ block: 'nearest' });
      return;
    }
  }
}
function enter(element) {
  const { cluster } = element;
  const group = groups[cluster.head.group];
  now.asked = true;
  if (cluster.items.length > 1) {
    lookAt(cluster.items);
    Object.assign(now, { item: cluster.head, whole: true });
    show(cluster);
  } else if (!group.open) {
    read(cluster.head, true, true);
  } else {
    show(cluster);
    panel.focus();
  }
}

document.addEventListener('keydown', event => {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.target.tagName === 'INPUT') return;
  const element = event.target.closest && event.target.closest('.item');
  const { key } = event;
  if (key === '+' || key === '=') zoom(0.6);
  else if (key === '-') zoom(1 / 0.6);
  else if (key === '0') look(WHOLE.from, WHOLE.to);
  else if (key === 'f' && failures.length) fail(now.failure + 1);
  else if (key === 'Escape') { $('help').open = false; leave(); }
  else if (event.shiftKey && key === 'ArrowLeft') pan(-0.25);
  else if (event.shiftKey && key === 'ArrowRight') pan(0.25);
  else if (element && key.startsWith('Arrow')) step(element, key);
  else if (event.target === chart && key.startsWith('Arrow') && now.item) read(now.item, true);
  else if (element && (key === 'Enter' || key === ' ')) enter(element);
  else return;
  event.preventDefault();
});
chart.addEventListener('focusin', event => {
  const element = event.target.closest('.item');
  if (!element) return;
  const { cluster } = element;
  if (!cluster.items.includes(now.item)) Object.assign(now, { item: cluster.head, whole: cluster.items.length > 1 });
  mark(cluster);
  show(now.whole ? cluster : { items: [now.item], head: now.item });
});
chart.addEventListener('pointerover', event => {
  const element = event.target.closest('.item');
  if (element && event.pointerType === 'mouse' && !held.size) show(element.cluster);
});
chart.addEventListener('pointerleave', event => {
  if (now.item && event.pointerType === 'mouse') show({ items: [now.item], head: now.item });
});

// One pointer pans, two zoom; what has not moved is a click.
const held = new Map();
let moved = false;
const share = clientX => { const box = axis.getBoundingClientRect(); return (clientX - box.left) / box.width; };
chart.addEventListener('pointerdown', event => {
  if (!event.target.closest('svg') || event.button) return;
  if (!held.size) moved = false;
  held.set(event.pointerId, event.clientX);
});
addEventListener('pointermove', event => {
  if (!held.has(event.pointerId)) return;
  const before = held.get(event.pointerId), other = [...held].find(([id]) => id !== event.pointerId);
  if (!moved && Math.abs(event.clientX - before) < 4) return;
  moved = true;
  held.set(event.pointerId, event.clientX);
  if (other) zoom(Math.max(0.2, Math.abs(before - other[1])) / Math.max(0.2, Math.abs(event.clientX - other[1])), share(other[1]));
  else pan(share(before) - share(event.clientX));
});
for (const end of ['pointerup', 'pointercancel']) addEventListener(end, event => held.delete(event.pointerId));
chart.addEventListener('click', event => {
  const element = event.target.closest('.item');
  if (!element || moved) return;
  now.asked = true;
  Object.assign(now, { item: element.cluster.head, whole: element.cluster.items.length > 1 });
  element.focus({ preventScroll: true });
  show(element.cluster);
});
chart.addEventListener('wheel', event => {
  if (!event.target.closest('svg')) return;
  const scrolls = document.documentElement.scrollHeight > innerHeight + 1;
  const sideways = event.shiftKey ? event.deltaX || event.deltaY : Math.abs(event.deltaX) > Math.abs(event.deltaY) ? event.deltaX : 0;
  if (sideways) pan(sideways / view.width);
  else if (event.ctrlKey || !scrolls || event.target.closest('#axis')) zoom(Math.exp(event.deltaY / 400), share(event.clientX));
  else return;
  event.preventDefault();
}, { passive: false });

function sift() {
  const wanted = $('search').value.trim().toLowerCase();
  for (const group of groups) {
    const fits = !wanted || nameOf(group).toLowerCase().includes(wanted) || group.id.startsWith(wanted);
    group.section.hidden = !fits || ($('failing').checked && !group.failed);
  }
  draw();
}
$('in').onclick = () => zoom(0.6);
$('out').onclick = () => zoom(1 / 0.6);
$('all').onclick = () => look(WHOLE.from, WHOLE.to);
$('search').oninput = sift;
$('failing').onchange = sift;
if ($('show')) $('show').onclick = () => { const { item } = failures[now.failure]; now.asked = true; lookAt([item]); draw(); read(item, true, true); };
if ($('next')) $('next').onclick = () => fail(now.failure + 1);

$('tools').hidden = $('main').hidden = false;
$('filter').hidden = $('only').hidden = !DATA.many;
Object.assign(view, WHOLE);
build();
draw();
addEventListener('resize', drawSoon);
document.querySelector('#axis .label').textContent = `time, ${UNIT}`;
if (failures.length) fail(0);
else if (items.length) { now.item = items[0]; show({ items: [items[0]], head: items[0] }); }
scrollTo(0, 0);
