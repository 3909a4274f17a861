// The board: a row a run, filtered, sorted and compared; where a server is behind it, what has changed is fetched.
// Text from runs only ever becomes text: no part of the page is made from markup.
"use strict";
(() => {
  const { make, svg, many, known, number, whole, percent, clock, day } = parts;
  const at = (id) => document.getElementById(id);
  const STATES = { running: "running", finished: "finished", unfinished: "unfinished", failed: "failed", damaged: "damaged" };
  const SHADES = 7; // colours of curves, in board.css
  let board = JSON.parse(at("board-data").textContent);
  const rows = new Map(); // of the table, by the name of the run
  const ticked = new Set();
  const asked = { words: "", state: "", measure: "", sort: "begun", down: true };
  let over = "time", comparing = false, silent = false, tag = "";
  let scale = [0, 1]; // of the curves

  const words = () => board.measures[asked.measure]?.words ?? "measure";
  const lastOf = (run) => run.last[asked.measure] ?? null;
  const about = (run) => {
    const what = [run.algorithm, run.data].filter(Boolean).join(" on "), place = run.name.split("/").slice(0, -1).join("/");
    const parts = [what, run.clients ? many(run.clients, "client") : "", known(run.seed) ? `seed ${run.seed}` : "", place && `in ${place}`];
    return parts.filter(Boolean).join(", ");
  };

  // -- the table ---------------------------------------------------------------------------------------------

  const COLUMNS = [
    { key: "name", title: () => "run", value: (run) => run.name.toLowerCase() },
    { key: "curve", title: () => "", value: null },
    { key: "measure", title: words, value: lastOf, down: () => !board.measures[asked.measure]?.lower },
    { key: "round", title: () => "rounds", value: (run) => run.round, down: () => true },
    { key: "time", title: () => "virtual time", value: (run) => run.time[0], down: () => true },
    { key: "heard", title: () => "clients heard", value: (run) => run.heard, down: () => true },
    { key: "begun", title: () => "begun", value: (run) => run.begun, down: () => true },
  ];

  const extent = (values) => [Math.min(...values), Math.max(...values)];
  const curve = (run, axis) => {
    const across = run.curves[axis] ?? [], up = run.curves[asked.measure] ?? [];
    return across.map((x, i) => [x, up[i]]).filter(([x, y]) => known(x) && known(y));
  };

  // All curves have one scale, so that they can be compared; one that is far off leaves it and does not flatten the others.
  function scaled(runs) {
    const ends = runs.map((run) => curve(run, "round").map(([, y]) => y)).filter((values) => values.length).map(extent);
    if (!ends.length) return [0, 1];
    const middle = (values) => values.sort((a, b) => a - b)[values.length >> 1];
    const low = middle(ends.map(([found]) => found)), high = middle(ends.map(([, found]) => found)), room = 2 * (high - low) || Infinity;
    return [Math.max(low - room, Math.min(...ends.map(([found]) => found))), Math.min(high + room, Math.max(...ends.map(([, found]) => found)))];
  }

  function sparkline(run) {
    const picture = svg("svg", { viewBox: "0 0 120 32", preserveAspectRatio: "none", "aria-hidden": "true" });
    const points = curve(run, "round"), [low, high] = scale;
    if (!points.length) return picture;
    const [left, right] = extent(points.map(([x]) => x));
    const height = (y) => Math.min(1, Math.max(0, (y - low) / (high - low || 1)));
    const place = ([x, y]) => [2 + (116 * (x - left)) / (right - left || 1), 29 - 26 * height(y)];
    const line = points.map((point) => place(point).map((v) => v.toFixed(1)).join(",")).join(" ");
    picture.append(svg("polyline", { points: points.length > 1 ? line : `${line} ${line}` }));
    return picture;
  }

  function title(run) {
    const name = run.name.split("/").at(-1);
    return run.report ? make("a", { href: `runs/${run.address}/report.html` }, name) : make("span", {}, name);
  }

  function cells(run) {
    const worst = run.worst[asked.measure];
    const far = run.rounds && run.round < run.rounds ? `${whole(run.round)} of ${whole(run.rounds)}` : whole(run.round);
    const seen = run.round > 0 || run.time[0] > 0;
    const cell = (key, title, ...inside) => make("td", { className: key, "data-title": title }, ...inside);
    return [
      make("th", { scope: "row" }, title(run), make("small", { className: "what" }, about(run)),
        make("small", { className: "state" }, make("b", {}, STATES[run.state]), run.words && ` · ${run.words}`)),
      cell("curve", "", sparkline(run)),
      cell("measure", words(), number(lastOf(run)), known(worst) ? make("small", {}, `worst 10th: ${number(worst)}`) : ""),
      cell("round", "rounds", seen ? far : "–", run.state === "running" && run.rounds ? make("progress", { max: run.rounds, value: run.round, "aria-label": "rounds done" }) : ""),
      cell("time", "virtual time", seen ? run.time[1] : "–", seen ? make("small", {}, `${run.traffic[1]} sent`) : ""),
      cell("heard", "clients heard", whole(run.heard) + (known(run.heard) && run.clients ? ` of ${whole(run.clients)}` : ""),
        known(run.lost) ? make("small", {}, `${percent(run.lost)} of jobs lost`) : ""),
      cell("begun", "begun", ...(run.begun ? [day(run.begun), make("small", {}, clock(run.begun))] : ["–"])),
    ];
  }

  function fill(run) {
    const text = JSON.stringify([run, asked.measure, scale]);
    const before = rows.get(run.name);
    if (before?.text === text) return;
    const box = before?.box ?? make("input", { type: "checkbox", "aria-label": `Tick ${run.name} to compare it` });
    const line = before?.line ?? make("tr", {}, make("td", { className: "tick" }, make("label", {}, box)));
    const chosen = line.contains(document.activeElement) && document.activeElement !== box;
    line.className = run.state;
    while (line.children.length > 1) line.lastChild.remove();
    line.append(...cells(run));
    if (chosen) line.querySelector("a")?.focus();
    const search = [run.name, run.algorithm, run.data, run.state, run.words, ...Object.entries(run.options).map((pair) => pair.join("="))];
    rows.set(run.name, { run, text, line, box, search: search.join(" ").toLowerCase() });
    if (!before) box.addEventListener("change", () => tick(run.name, box.checked));
  }

  function shown() {
    const wanted = asked.words.toLowerCase().split(/\s+/).filter(Boolean);
    const found = [...rows.values()].filter(({ search }) => wanted.every((word) => search.includes(word)));
    const counts = Object.fromEntries(Object.keys(STATES).map((state) => [state, found.filter(({ run }) => run.state === state).length]));
    chips(counts, found.length);
    return found.filter(({ run }) => !asked.state || run.state === asked.state);
  }

  function sorted(found) {
    const { value } = COLUMNS.find(({ key }) => key === asked.sort);
    const sign = asked.down ? -1 : 1;
    const order = (a, b) => {
      const [x, y] = [value(a.run), value(b.run)];
      if (!known(x) || !known(y)) return known(y) - known(x); // what is not known comes last
      return x === y ? b.run.begun - a.run.begun || (a.run.name < b.run.name ? -1 : 1) : sign * (x < y ? -1 : 1);
    };
    return found.sort(order);
  }

  function show() {
    scale = scaled(board.runs);
    board.runs.forEach(fill);
    const there = new Set(board.runs.map((run) => run.name));
    for (const [name, { line }] of rows) {
      if (there.has(name)) continue;
      line.remove();
      rows.delete(name);
      ticked.delete(name);
    }
    const found = sorted(shown());
    const body = at("runs").tBodies[0], kept = new Set(found.map(({ line }) => line));
    for (const { line } of rows.values()) if (!kept.has(line)) line.remove();
    found.forEach(({ line }, place) => {
      if (body.children[place] !== line) body.insertBefore(line, body.children[place] ?? null);
    });
    at("runs").hidden = !found.length;
    at("none").hidden = Boolean(found.length);
    at("none").textContent = rows.size ? "No run is like that." : "There are no runs here yet. One begins with: turnout run digits";
    heads();
    lead(found.map(({ run }) => run));
    status();
    compare();
    remember();
  }

  function heads() {
    const line = at("runs").tHead.rows[0];
    const made = COLUMNS.map(({ key, title, value }) => {
      const sort = asked.sort === key ? (asked.down ? "descending" : "ascending") : "none";
      const head = make("th", { scope: "col", className: key, ...(value && { "aria-sort": sort }) });
      if (!value) return head;
      const button = make("button", { type: "button", "data-sort": key }, title());
      button.addEventListener("click", () => sortBy(key));
      head.append(button);
      return head;
    });
    const chosen = document.activeElement?.dataset?.sort;
    line.replaceChildren(make("td", { className: "tick" }), ...made);
    if (chosen) line.querySelector(`[data-sort="${chosen}"]`)?.focus();
  }

  function sortBy(key) {
    const { down = () => false } = COLUMNS.find((column) => column.key === key);
    asked.down = asked.sort === key ? !asked.down : down();
    asked.sort = key;
    at("sort").value = key;
    show();
  }

  function chips(counts, all) {
    const made = [["", "all", all], ...Object.entries(STATES).map(([state, name]) => [state, name, counts[state]])];
    const kept = made.filter(([state, , count]) => count || !state || state === asked.state);
    const chosen = document.activeElement?.dataset?.state;
    at("states").replaceChildren(...kept.map(([state, name, count]) => {
      const pressed = String(asked.state === state);
      const chip = make("button", { type: "button", className: state, "data-state": state, "aria-pressed": pressed }, `${name} ${count}`);
      chip.addEventListener("click", () => { asked.state = asked.state === state ? "" : state; show(); });
      return chip;
    }));
    if (chosen !== undefined) at("states").querySelector(`[data-state="${chosen}"]`)?.focus();
  }

  // -- what a person would say -------------------------------------------------------------------------------

  function status() {
    const count = (state) => board.runs.filter((run) => run.state === state).length;
    const others = Object.keys(STATES).filter((state) => count(state)).map((state) => `${count(state)} ${STATES[state]}`);
    const said = [many(board.runs.length, "run") + (others.length ? `: ${others.join(", ")}` : "")];
    if (!board.live) said.push(`as of ${day(board.at)}, ${clock(board.at)}`);
    else said.push(silent ? "the board's server does not answer: this is the last that is known" : "live");
    const text = said.join(" · ");
    if (at("about").textContent !== text) at("about").textContent = text;
    at("about").classList.toggle("silent", silent);
  }

  function lead(runs) {
    const lower = board.measures[asked.measure]?.lower;
    const ended = runs.filter((run) => run.state === "finished" && lastOf(run) !== null);
    const groups = [...Map.groupBy(ended, (run) => run.setting).entries()].map(([setting, of]) => {
      const values = of.map(lastOf);
      return { name: board.settings[setting], values, mean: values.reduce((a, b) => a + b, 0) / values.length };
    });
    groups.sort((a, b) => (lower ? a.mean - b.mean : b.mean - a.mean));
    const alike = new Set(ended.map((run) => run.data)).size === 1;
    at("leading").hidden = groups.length < 2 || !alike;
    if (at("leading").hidden) return;
    const seeds = ({ values }) => (values.length === 1 ? "one seed" : `mean of ${values.length} seeds, ${extent(values).map(number).join(" to ")}`);
    const [first, next] = groups;
    const said = (group) => [make("b", {}, group.name), ` with ${number(group.mean)} (${seeds(group)})`];
    const end = Math.min(first.values.length, next.values.length) === 1 ? ". One seed proves nothing." : ".";
    at("leading").replaceChildren(`${lower ? "Lowest" : "Highest"} ${words()}: `, ...said(first), "; next: ", ...said(next), end);
  }

  // -- comparison --------------------------------------------------------------------------------------------

  function tick(name, on) {
    if (on) ticked.add(name); else ticked.delete(name);
    if (!ticked.size) comparing = false;
    show();
  }

  function compare() {
    const runs = [...ticked].map((name) => rows.get(name)).filter(Boolean);
    for (const { run, box, line } of rows.values()) {
      box.checked = ticked.has(run.name);
      line.classList.toggle("chosen", box.checked);
    }
    at("ticked").hidden = !runs.length;
    document.body.classList.toggle("choosing", Boolean(runs.length));
    at("ticked-count").textContent = `${runs.length} ticked`;
    at("compare").textContent = comparing ? "See the comparison" : "Compare";
    at("compared").hidden = !comparing;
    if (!comparing) return;
    const chosen = runs.map(({ run }) => run);
    at("compared-title").textContent = `${words()} of ${many(chosen.length, "run")}`;
    for (const button of document.querySelectorAll("[data-over]")) button.setAttribute("aria-pressed", String(button.dataset.over === over));
    const readable = chosen.filter((run) => run.report);
    at("full").hidden = !board.live || !readable.length || readable.length > 10;
    at("full").href = `compare.html?${readable.map((run) => `run=${run.address}`).join("&")}`;
    at("chart").replaceChildren(chart(chosen));
    beside(chosen);
  }

  const HEIGHT = 280, LEFT = 56, BOTTOM = 240;

  function ticks(low, high, about) {
    const wide = (high - low) / about || Math.abs(low) || 1, size = 10 ** Math.floor(Math.log10(wide));
    const step = [1, 2, 5, 10].map((times) => times * size).find((found) => found >= wide * (1 - 1e-9));
    const first = Math.floor(low / step + 1e-9), last = Math.max(first + 1, Math.ceil(high / step - 1e-9));
    return Array.from({ length: last - first + 1 }, (_, i) => Number(((first + i) * step).toPrecision(12)));
  }

  function unit(longest) {
    if (over === "round") return [1, "round"];
    const found = [[600, 1, "s"], [36000, 60, "min"], [864000, 3600, "h"], [Infinity, 86400, "days"]].find(([limit]) => longest < limit);
    return [found[1], `virtual time (${found[2]})`];
  }

  function chart(runs) {
    const lines = runs.map((run) => curve(run, over));
    const points = lines.flat();
    if (!points.length) return make("p", { className: "small" }, `None of them has recorded ${words()}.`);
    const [size, name] = unit(Math.max(...points.map(([x]) => x)));
    const WIDTH = Math.max(280, at("chart").clientWidth);
    const across = ticks(0, Math.max(...points.map(([x]) => x / size)), WIDTH / 110), up = ticks(...extent(points.map(([, y]) => y)), 5);
    const x = (value) => LEFT + ((WIDTH - LEFT - 10) * value) / across.at(-1);
    const y = (value) => BOTTOM - ((BOTTOM - 12) * (value - up[0])) / (up.at(-1) - up[0]);
    const label = `${words()} over ${name}: ${runs.map((run) => `${run.name} ends at ${number(lastOf(run))}`).join(", ")}`;
    const picture = svg("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", "aria-label": label });
    const text = (u, v, anchor, said) => svg("text", { x: u, y: v, "text-anchor": anchor }, said);
    for (const value of up) picture.append(svg("line", { x1: LEFT, x2: WIDTH - 10, y1: y(value), y2: y(value) }), text(LEFT - 8, y(value) + 4, "end", String(value)));
    for (const value of across) picture.append(text(x(value), BOTTOM + 18, "middle", whole(value)));
    picture.append(text((LEFT + WIDTH) / 2, HEIGHT - 4, "middle", name));
    lines.forEach((line, place) => {
      const path = line.map(([u, v]) => `${x(u / size).toFixed(1)},${y(v).toFixed(1)}`).join(" ");
      picture.append(svg("polyline", { points: path, class: shade(place) }));
    });
    return picture;
  }

  const shade = (place) => `shade-${place % SHADES}${place >= SHADES ? " dashed" : ""}`;

  function beside(runs) {
    const options = [...new Set(runs.flatMap((run) => Object.keys(run.options)))];
    const differing = options.filter((option) => new Set(runs.map((run) => run.options[option])).size > 1);
    const heads = ["run", words(), "worst 10th percentile", "rounds", "virtual time", "traffic", "clients heard", "jobs lost", "seed", ...differing];
    const lines = runs.map((run, place) => [
      make("th", { scope: "row" }, make("span", { className: `swatch ${shade(place)}` }), run.name, run.state === "finished" ? "" : make("small", {}, ` ${STATES[run.state]}`)),
      ...[number(lastOf(run)), number(run.worst[asked.measure]), whole(run.round), run.time[1], run.traffic[1], whole(run.heard), known(run.lost) ? percent(run.lost) : "–", run.seed ?? "–", ...differing.map((option) => run.options[option] ?? "–")]
        .map((value) => make("td", {}, String(value))),
    ]);
    at("beside").replaceChildren(
      make("thead", {}, make("tr", {}, ...heads.map((head) => make("th", { scope: "col" }, head)))),
      make("tbody", {}, ...lines.map((line) => make("tr", {}, ...line))),
    );
  }

  // -- what a reader has asked for, kept in the address ------------------------------------------------------

  function remember() {
    const kept = new URLSearchParams();
    for (const name of ["words", "state"]) if (asked[name]) kept.set(name, asked[name]);
    if (asked.measure !== board.first) kept.set("measure", asked.measure);
    if (asked.sort !== "begun" || !asked.down) kept.set("sort", (asked.down ? "-" : "") + asked.sort);
    for (const name of ticked) kept.append("run", name);
    if (comparing) kept.set("compared", over);
    if (location.hash.slice(1) !== kept.toString()) history.replaceState(null, "", `#${kept}`);
  }

  function recall() {
    const kept = new URLSearchParams(location.hash.slice(1));
    asked.words = kept.get("words") ?? "";
    asked.state = kept.get("state") in STATES ? kept.get("state") : "";
    asked.measure = kept.get("measure") in board.measures ? kept.get("measure") : board.first;
    const sort = kept.get("sort") ?? "-begun", key = sort.replace(/^-/, "");
    const sortable = COLUMNS.some((column) => column.key === key && column.value);
    [asked.sort, asked.down] = sortable ? [key, sort.startsWith("-")] : ["begun", true];
    const names = new Set(board.runs.map((run) => run.name));
    for (const name of kept.getAll("run")) if (names.has(name)) ticked.add(name);
    if (kept.has("compared")) [comparing, over] = [ticked.size > 0, kept.get("compared") === "round" ? "round" : "time"];
    at("words").value = asked.words;
  }

  function choices() {
    const options = Object.entries(board.measures).map(([name, { words }]) => make("option", { value: name }, words));
    at("measure").replaceChildren(...options);
    if (!(asked.measure in board.measures)) asked.measure = board.first;
    at("measure").value = asked.measure;
    at("measure").parentElement.hidden = options.length < 2;
    at("sort").replaceChildren(...COLUMNS.filter(({ value }) => value).map(({ key, title }) => make("option", { value: key }, title())));
    at("sort").value = asked.sort;
  }

  // -- what changes meanwhile --------------------------------------------------------------------------------

  async function look() {
    try {
      const answer = await fetch("runs.json");
      if (!answer.ok) throw new Error(answer.statusText);
      const changed = answer.headers.get("etag") !== tag || silent;
      silent = false;
      if (changed) {
        board = await answer.json();
        tag = answer.headers.get("etag");
        choices();
        show();
      }
    } catch {
      silent = true;
      status();
    }
    const busy = board.runs.some((run) => run.state === "running");
    setTimeout(() => (document.hidden ? document.addEventListener("visibilitychange", look, { once: true }) : look()), busy ? 2000 : 5000);
  }

  at("words").addEventListener("input", () => { asked.words = at("words").value; show(); });
  at("measure").addEventListener("change", () => { asked.measure = at("measure").value; choices(); show(); });
  at("sort").addEventListener("change", () => { asked.sort = ""; sortBy(at("sort").value); });
  at("clear").addEventListener("click", () => { ticked.clear(); comparing = false; show(); });
  at("close").addEventListener("click", () => { comparing = false; show(); });
  at("compare").addEventListener("click", () => {
    comparing = true;
    show();
    at("compared").scrollIntoView({ block: "start" });
    at("compared-title").focus({ preventScroll: true });
  });
  addEventListener("resize", () => { if (comparing) compare(); });
  for (const button of document.querySelectorAll("[data-over]")) {
    button.addEventListener("click", () => { over = button.dataset.over; show(); });
  }

  recall();
  choices();
  show();
  if (board.live) look();
  document.documentElement.dataset.ready = "true";
})();
