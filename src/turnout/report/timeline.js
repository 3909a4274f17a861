// The timeline: lanes of clients on a canvas, which zooms in time and in clients.
"use strict";

function decoded(letters) {
  const text = atob(letters), bytes = new Uint8Array(text.length);
  for (let i = 0; i < text.length; i++) bytes[i] = text.charCodeAt(i);
  return bytes;
}

function timelines(runs, colour) {
  const canvas = document.getElementById("lanes"), pen = canvas.getContext("2d");
  const tip = document.getElementById("tip"), picker = document.getElementById("lane");
  const PHASES = [["downloading", "#56b4e9", "/"], ["training", "#009e73", ""], ["uploading", "#e69f00", "\\"]];
  const ENDS = ["aggregated", "not used", "crashed", "offline", "left", "cancelled", "silenced"];
  const BOTTOM = 40, TOP = 6, NARROW = 64, LETTER = 7; // pixels; of a letter, no less than it takes
  const KINDS = { f4: Float32Array, i4: Int32Array, u1: Uint8Array };
  const plain = (value) => {
    if (!value || value.dtype === undefined) return value;
    return new KINDS[value.dtype](decoded(value.bdata).buffer);
  };
  let run, view, known, LEFT = NARROW, width = 0, height = 0, fills = [];

  function choose(number) {
    run = Object.fromEntries(Object.entries(runs[number]).map(([name, value]) => [name, plain(value)]));
    run.span = run.end || 1;
    const longest = Math.max(0, ...(run.names || []).slice(0, 1000).map((name) => name.length));
    LEFT = Math.min(140, Math.max(NARROW, 24 + LETTER * longest));
    run.awayFirst = firsts(run.away_row, run.rows.length);
    document.getElementById("lanes-about").textContent = run.about;
    reset();
  }

  function firsts(rows, count) { // where the spells of each row begin
    const found = new Int32Array(count + 1);
    for (const row of rows) found[row + 1]++;
    for (let i = 0; i < count; i++) found[i + 1] += found[i];
    return found;
  }

  function reset() {
    view = { from: 0, to: run.span, top: 0, rows: run.rows.length };
    draw();
  }

  function label(row) { // as much of a client's name as there is room for
    const name = run.names ? run.names[row] : String(run.rows[row]);
    const room = Math.floor((LEFT - 24) / LETTER);
    return run.names && name.length > room ? `${name.slice(0, room - 1)}…` : name;
  }

  const x = (time) => LEFT + ((time - view.from) / (view.to - view.from)) * (width - LEFT);
  const y = (row) => TOP + ((row - view.top) / view.rows) * (height - TOP - BOTTOM);

  function pattern(base, stroke) {
    const tile = document.createElement("canvas");
    tile.width = tile.height = 8;
    const p = tile.getContext("2d");
    p.fillStyle = base;
    p.fillRect(0, 0, 8, 8);
    p.strokeStyle = "rgba(0,0,0,.45)";
    p.lineWidth = 1.2;
    p.beginPath();
    if (stroke === "/") for (const k of [-4, 4, 12]) { p.moveTo(k - 4, 8); p.lineTo(k + 4, 0); }
    if (stroke === "\\") for (const k of [-4, 4, 12]) { p.moveTo(k - 4, 0); p.lineTo(k + 4, 8); }
    if (stroke === ".") p.rect(3, 3, 1, 1);
    p.stroke();
    return pen.createPattern(tile, "repeat");
  }

  function prepare() {
    const ratio = devicePixelRatio || 1, box = canvas.getBoundingClientRect();
    width = box.width;
    height = box.height;
    canvas.width = Math.round(width * ratio);
    canvas.height = Math.round(height * ratio);
    pen.setTransform(ratio, 0, 0, ratio, 0, 0);
    fills = PHASES.map(([, base, stroke]) => pattern(base, stroke));
    fills.push(pattern(known.away, "."));
  }

  function draw() {
    if (!known) return;
    prepare();
    pen.clearRect(0, 0, width, height);
    pen.save();
    pen.beginPath();
    pen.rect(LEFT, TOP, width - LEFT, height - TOP - BOTTOM);
    pen.clip();
    const first = Math.max(0, Math.floor(view.top)), last = Math.min(run.rows.length, Math.ceil(view.top + view.rows));
    const tall = y(1) - y(0), gap = tall > 5 ? Math.min(3, tall * 0.18) : 0;
    closes();
    for (let row = first; row < last; row++) {
      const at = y(row) + gap, thick = Math.max(tall - 2 * gap, 0.6);
      away(row, at, thick);
      jobs(row, at, thick);
    }
    pen.restore();
    axes(first, last, tall);
  }

  function closes() { // a line at every aggregation, where they can be told apart
    const step = (width - LEFT) / (view.to - view.from);
    let shown = 0;
    for (const time of run.closes) if (time >= view.from && time <= view.to) shown++;
    if (shown * 5 > width || !Number.isFinite(step)) return;
    pen.strokeStyle = known.rule;
    pen.lineWidth = 1;
    pen.beginPath();
    for (const time of run.closes) if (time >= view.from && time <= view.to) { pen.moveTo(x(time), 0); pen.lineTo(x(time), height); }
    pen.stroke();
  }

  function away(row, at, thick) {
    pen.fillStyle = thick > 8 ? fills[3] : known.away;
    for (let i = run.awayFirst[row]; i < run.awayFirst[row + 1]; i++) {
      if (run.back[i] < view.from || run.away[i] > view.to) continue;
      pen.fillRect(x(run.away[i]), at, Math.max(0.5, x(run.back[i]) - x(run.away[i])), thick);
    }
  }

  function jobs(row, at, thick) {
    let i = run.first[row], end = run.first[row + 1], painted = -1;
    const seen = (k) => run.start[k] + run.download_seconds[k] + run.compute_seconds[k] + run.upload_seconds[k];
    for (; i < end && run.start[i] <= view.to; i++) {
      const stop = seen(i);
      if (stop < view.from) continue;
      const a = x(run.start[i]), z = x(stop);
      if (z - a < 3) { // too short for its parts
        if (z > painted + 0.5 || run.outcome[i] > 1) {
          pen.fillStyle = run.outcome[i] > 1 ? known.crash : PHASES[1][1];
          pen.fillRect(a, at, Math.max(1, z - a), thick);
          painted = Math.max(painted, Math.max(a + 1, z));
        }
        continue;
      }
      let from = run.start[i];
      for (const [k, name] of ["download_seconds", "compute_seconds", "upload_seconds"].entries()) {
        const to = from + run[name][i];
        pen.fillStyle = thick > 4 ? fills[k] : PHASES[k][1];
        pen.fillRect(x(from), at, x(to) - x(from), thick);
        from = to;
      }
      painted = z;
      mark(run.outcome[i], z, at, thick);
    }
  }

  function mark(outcome, place, at, thick) {
    const middle = at + thick / 2, size = Math.min(5, thick / 2);
    if (thick < 4) {
      if (outcome > 1) { pen.fillStyle = known.crash; pen.fillRect(place - 1, at, 2, thick); }
      return;
    }
    pen.lineWidth = 2;
    pen.strokeStyle = outcome > 1 ? known.crash : known.ink;
    pen.fillStyle = known.ink;
    pen.beginPath();
    if (outcome === 0) { pen.arc(place, middle, size * 0.7, 0, 7); pen.fill(); return; }
    if (outcome === 1) { pen.arc(place, middle, size * 0.7, 0, 7); }
    else if (outcome === 5) { pen.moveTo(place, at); pen.lineTo(place, at + thick); }
    else { pen.moveTo(place - size, middle - size); pen.lineTo(place + size, middle + size);
      pen.moveTo(place + size, middle - size); pen.lineTo(place - size, middle + size); }
    pen.stroke();
  }

  const UNITS = [[864000, 86400, "days"], [36000, 3600, "h"], [600, 60, "min"], [0, 1, "s"]];
  function axes(first, last, tall) {
    pen.fillStyle = known.soft;
    pen.strokeStyle = known.rule;
    pen.lineWidth = 1;
    pen.font = "12px system-ui, sans-serif";
    const [, unit, name] = UNITS.find(([limit]) => run.span >= limit);
    const wide = (view.to - view.from) / unit, rough = wide / Math.max(3, width / 110);
    const power = 10 ** Math.floor(Math.log10(rough)), step = [1, 2, 5, 10].map((k) => k * power).find((s) => s >= rough);
    pen.textAlign = "center";
    for (let t = Math.ceil(view.from / unit / step) * step; t <= view.to / unit + step * 1e-6; t += step) {
      const place = x(t * unit);
      if (place > width - 12) break;
      pen.fillText(String(+t.toPrecision(8)), place, height - BOTTOM + 16);
      pen.fillRect(place, height - BOTTOM, 1, 4);
    }
    pen.fillText(`virtual time (${name})`, (LEFT + width) / 2, height - 5);
    pen.textAlign = "right";
    const every = Math.max(1, Math.ceil(15 / tall));
    for (let row = Math.ceil(first / every) * every; row < last; row += every) {
      const place = y(row + 0.5) + 4;
      if (place > TOP + 4 && place < height - BOTTOM + 4) pen.fillText(label(row), LEFT - 8, place);
    }
    pen.save();
    pen.translate(12, (height - BOTTOM) / 2);
    pen.rotate(-Math.PI / 2);
    pen.textAlign = "center";
    pen.fillText("client", 0, 0);
    pen.restore();
    pen.strokeRect(LEFT + 0.5, TOP + 0.5, width - LEFT - 1, height - TOP - BOTTOM);
  }

  // -- moving ----------------------------------------------------------------------------------------------------

  const clamp = (value, low, high) => Math.min(Math.max(value, low), Math.max(low, high));

  function zoomTime(factor, around = (view.from + view.to) / 2) {
    const wide = clamp((view.to - view.from) * factor, run.span * 1e-6, run.span);
    view.from = clamp(around - ((around - view.from) / (view.to - view.from)) * wide, 0, run.span - wide);
    view.to = view.from + wide;
  }

  function zoomRows(factor, around = view.top + view.rows / 2) {
    const rows = clamp(view.rows * factor, Math.min(4, run.rows.length), run.rows.length);
    view.top = clamp(around - ((around - view.top) / view.rows) * rows, 0, run.rows.length - rows);
    view.rows = rows;
  }

  function pan(dt, dr) {
    const wide = view.to - view.from;
    view.from = clamp(view.from + dt, 0, run.span - wide);
    view.to = view.from + wide;
    view.top = clamp(view.top + dr, 0, run.rows.length - view.rows);
  }

  const MOVES = {
    in: () => zoomTime(0.6), out: () => zoomTime(1 / 0.6), taller: () => zoomRows(0.6), flatter: () => zoomRows(1 / 0.6),
    reset, left: () => pan(-(view.to - view.from) / 6, 0), right: () => pan((view.to - view.from) / 6, 0),
    up: () => pan(0, -view.rows / 6), down: () => pan(0, view.rows / 6),
  };
  const KEYS = { "+": "in", "=": "in", "-": "out", "0": "reset", Home: "reset", ArrowLeft: "left", ArrowRight: "right",
    ArrowUp: "up", ArrowDown: "down", PageUp: "taller", PageDown: "flatter" };
  let waiting = false;
  function move(action) {
    action();
    if (waiting) return;
    waiting = true;
    requestAnimationFrame(() => { waiting = false; draw(); });
  }
  const place = (event) => {
    const box = canvas.getBoundingClientRect();
    return [event.clientX - box.left, event.clientY - box.top];
  };
  const time = (px) => view.from + ((px - LEFT) / (width - LEFT)) * (view.to - view.from);
  const rowAt = (py) => view.top + ((py - TOP) / (height - TOP - BOTTOM)) * view.rows;

  document.querySelectorAll("[data-move]").forEach((b) => b.addEventListener("click", () => move(MOVES[b.dataset.move])));
  canvas.addEventListener("keydown", (event) => {
    if (!KEYS[event.key] || event.ctrlKey || event.metaKey) return;
    event.preventDefault();
    move(MOVES[KEYS[event.key]]);
  });
  canvas.addEventListener("wheel", (event) => {
    if (document.activeElement !== canvas && !event.ctrlKey) return; // the page scrolls on
    event.preventDefault();
    const [px, py] = place(event), factor = Math.exp((event.deltaY || event.deltaX) * 0.0015);
    move(() => (event.shiftKey ? zoomRows(factor, rowAt(py)) : zoomTime(factor, time(px))));
  }, { passive: false });

  const fingers = new Map();
  canvas.addEventListener("pointerdown", (event) => {
    canvas.focus({ preventScroll: true });
    canvas.setPointerCapture(event.pointerId);
    fingers.set(event.pointerId, place(event));
  });
  canvas.addEventListener("pointermove", (event) => {
    const [px, py] = place(event);
    if (!fingers.has(event.pointerId)) return hover(px, py);
    tip.hidden = true;
    const before = [...fingers.values()], [ox, oy] = fingers.get(event.pointerId);
    fingers.set(event.pointerId, [px, py]);
    const after = [...fingers.values()];
    if (after.length === 1) {
      const perPixel = (view.to - view.from) / (width - LEFT);
      move(() => pan((ox - px) * perPixel, ((oy - py) / (height - TOP - BOTTOM)) * view.rows));
    } else if (after.length === 2) {
      const apart = (points) => Math.hypot(points[0][0] - points[1][0], points[0][1] - points[1][1]) || 1;
      move(() => zoomTime(apart(before) / apart(after), time((after[0][0] + after[1][0]) / 2)));
    }
  });
  for (const kind of ["pointerup", "pointercancel"]) canvas.addEventListener(kind, (e) => fingers.delete(e.pointerId));
  canvas.addEventListener("pointerleave", () => { tip.hidden = true; });

  function hover(px, py) {
    const row = Math.floor(rowAt(py)), at = time(px);
    tip.hidden = px < LEFT || row < 0 || row >= run.rows.length || py > height - BOTTOM;
    if (tip.hidden) return;
    tip.textContent = said(row, at);
    tip.style.left = `${clamp(px + 14, 0, width - 180)}px`;
    tip.style.top = `${py + 14}px`;
  }

  function said(row, at) {
    const lines = [`${run.names ? run.names[row] : `client ${run.rows[row]}`}, ${at.toPrecision(6)} s`];
    const slack = ((view.to - view.from) / (width - LEFT)) * 2;
    for (let i = run.first[row]; i < run.first[row + 1] && run.start[i] <= at + slack; i++) {
      const parts = [run.download_seconds[i], run.compute_seconds[i], run.upload_seconds[i]];
      if (run.start[i] + parts[0] + parts[1] + parts[2] < at - slack) continue;
      const words = parts.map((s, k) => `${PHASES[k][0]} ${s.toPrecision(3)} s`).join(", ");
      return [...lines, words, `${ENDS[run.outcome[i]]}, round ${run.round[i]}`].join("\n");
    }
    for (let i = run.awayFirst[row]; i < run.awayFirst[row + 1]; i++) {
      if (run.away[i] <= at && at < run.back[i]) return [...lines, "offline"].join("\n");
    }
    return [...lines, "idle"].join("\n");
  }

  // -- legend ----------------------------------------------------------------------------------------------------

  function legend() {
    const entries = [...PHASES.map((_, k) => [PHASES[k][0], (p) => { p.fillStyle = fills[k]; p.fillRect(0, 2, 26, 10); }]),
      ["offline", (p) => { p.fillStyle = fills[3]; p.fillRect(0, 2, 26, 10); }],
      ["idle", (p) => { p.strokeStyle = known.rule; p.strokeRect(0.5, 2.5, 25, 9); }],
      ["aggregated", (p) => { p.fillStyle = known.ink; p.beginPath(); p.arc(13, 7, 4, 0, 7); p.fill(); }],
      ["not used", (p) => { p.strokeStyle = known.ink; p.lineWidth = 2; p.beginPath(); p.arc(13, 7, 4, 0, 7); p.stroke(); }],
      ["crashed, lost", (p) => { p.strokeStyle = known.crash; p.lineWidth = 2; p.beginPath(); p.moveTo(8, 2); p.lineTo(18, 12);
        p.moveTo(18, 2); p.lineTo(8, 12); p.stroke(); }],
      ["cancelled", (p) => { p.fillStyle = known.crash; p.fillRect(12, 0, 2, 14); }]];
    document.getElementById("legend").replaceChildren(...entries.map(([words, paint]) => {
      const item = document.createElement("span"), sample = document.createElement("canvas"), ratio = devicePixelRatio || 1;
      Object.assign(sample, { width: 26 * ratio, height: 14 * ratio });
      Object.assign(sample.style, { width: "26px", height: "14px" });
      const p = sample.getContext("2d");
      p.scale(ratio, ratio);
      paint(p);
      item.append(sample, words);
      return item;
    }));
  }

  function redraw() {
    known = { crash: "#d55e00", ...Object.fromEntries(["ink", "soft", "rule", "away"].map((name) => [name, colour(name)])) };
    draw();
    legend();
  }

  picker.addEventListener("change", () => choose(Number(picker.value)));
  new ResizeObserver(() => move(() => {})).observe(canvas);
  choose(0);
  return { draw: redraw };
}
