// The page: unpacks what is embedded, draws charts when they come into view, and keeps their colours with the theme.
"use strict";
(async () => {
  const root = document.documentElement;
  const all = (selector) => [...document.querySelectorAll(selector)];

  async function unpacked(id) {
    const packed = new Blob([decoded(document.getElementById(id).textContent)]).stream();
    return new Response(packed.pipeThrough(new DecompressionStream("gzip")));
  }

  async function run(source) { // as a file, which browsers compile beside everything else
    const script = document.createElement("script");
    script.src = URL.createObjectURL(new Blob([await source.blob()], { type: "text/javascript" }));
    const done = new Promise((resolve) => script.addEventListener("load", resolve));
    document.head.append(script);
    await done;
    URL.revokeObjectURL(script.src);
  }

  function colour(name) {
    const probe = document.createElement("span");
    probe.style.color = `var(--${name})`;
    document.body.append(probe);
    const found = getComputedStyle(probe).color;
    probe.remove();
    return found;
  }

  const plotly = document.getElementById("plotly") ? unpacked("plotly").then(run) : null; // or it lies beside the page
  const figures = await (await unpacked("charts-data")).json();
  let lanes = null; // the timeline, once it has been in view

  const themed = () => {
    const [ink, soft, rule] = ["ink", "soft", "rule"].map(colour);
    const axis = { gridcolor: rule, zerolinecolor: rule, linecolor: soft, tickfont: { size: 12, color: soft }, automargin: true };
    return {
      paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
      font: { family: getComputedStyle(document.body).fontFamily, size: 13, color: ink },
      hoverlabel: { bgcolor: colour("card"), bordercolor: rule, font: { color: ink } },
      xaxis: axis, yaxis: axis,
    };
  };
  let over = "time";
  const drawn = new Set();

  function layout(figure) {
    const theme = themed();
    const axis = (name) => {
      const own = figure.layout[name], font = { size: 13, color: theme.font.color };
      return { ...theme[name], ...own, ...(own.title && { title: { ...own.title, standoff: 10, font } }) };
    };
    const legend = { orientation: "h", x: 0, y: 1.02, yanchor: "bottom", traceorder: "normal" };
    const rows = figure.layout.showlegend ? Math.ceil(figure.data.filter((t) => t.name).length / 3) : 0;
    const size = { height: 300 + 22 * rows, margin: { l: 56, r: 14, t: 8, b: 44 } };
    return { ...theme, ...size, legend, hovermode: "x unified", ...figure.layout, xaxis: axis("xaxis"), yaxis: axis("yaxis") };
  }

  async function drawLanes() {
    lanes ??= unpacked("timelines-data").then((found) => found.json()).then((runs) => timelines(runs, colour));
    (await lanes).draw();
  }

  function draw(place) {
    drawn.add(place);
    if (!place.dataset.chart) return drawLanes();
    const { figure, byRounds } = figures[place.dataset.chart];
    const shown = structuredClone(over === "rounds" && byRounds ? byRounds : figure);
    return Plotly.react(place.querySelector(".plot"), shown.data, layout(shown), { responsive: true, displayModeBar: false });
  }

  const recolour = () => drawn.forEach(draw);
  const charts = all("[data-chart], .timeline");

  for (const button of all("[data-over]")) {
    button.addEventListener("click", () => {
      over = button.dataset.over;
      all("[data-over]").forEach((b) => b.setAttribute("aria-pressed", String(b === button)));
      for (const place of drawn) if (figures[place.dataset.chart]?.byRounds) draw(place);
    });
  }

  addEventListener("recolour", recolour);

  let before;
  addEventListener("beforeprint", () => {
    before = root.dataset.theme;
    root.dataset.theme = "light";
    charts.forEach(draw);
  });
  addEventListener("afterprint", () => {
    if (before) root.dataset.theme = before; else delete root.dataset.theme;
    recolour();
  });

  await plotly;

  const watcher = new IntersectionObserver(async (entries) => {
    await Promise.all(entries.filter((e) => e.isIntersecting && !drawn.has(e.target)).map((e) => draw(e.target)));
    root.dataset.ready = "true";
  }, { rootMargin: "300px" });
  charts.forEach((place) => watcher.observe(place));
  if (!charts.length) root.dataset.ready = "true";
})();
