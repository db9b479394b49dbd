"use strict";
// Draws every chart of the page from the JSON beside it, in the page's colours; again if these
// change, the window does, or the page is printed.
(() => {
  const root = document.documentElement;
  const plots = [...document.querySelectorAll(".plot")];
  const figures = new Map(
    plots.map((plot) => [plot, JSON.parse(document.getElementById(plot.dataset.chart).textContent)]),
  );
  const touch = matchMedia("(pointer: coarse)").matches;

  const colour = (name) => getComputedStyle(root).getPropertyValue(name).trim();

  function themed(figure, plot) {
    const { data, layout } = structuredClone(figure);
    const ink = colour("--ink"), line = colour("--line"), surface = colour("--surface");
    for (const trace of data) {
      const own = colour(`--series-${trace.meta.series}`);
      if (trace.type === "heatmap") trace.colorscale = [[0, colour("--raised")], [1, colour("--heat")]];
      else trace.marker = { ...trace.marker, color: own };
      if (trace.line) trace.line.color = own;
    }
    const size = root.hasAttribute("data-print") ? 10 : plot.clientWidth < 420 ? 11 : 13;
    for (const part of [layout.xaxis, layout.yaxis, ...data.map((trace) => trace.colorbar)])
      if (part?.title) part.title.font = { size };
    const axis = {
      gridcolor: line, zerolinecolor: line, linecolor: line, automargin: true, fixedrange: touch,
    };
    return [data, {
      autosize: true,
      showlegend: false,
      margin: { l: 8, r: 12, t: 12, b: 8 },
      paper_bgcolor: "rgba(0,0,0,0)",
      plot_bgcolor: "rgba(0,0,0,0)",
      font: { family: getComputedStyle(root).fontFamily, size, color: ink },
      hoverlabel: { bgcolor: surface, bordercolor: line, font: { color: ink }, align: "left" },
      legend: { orientation: "h", y: 1.02, yanchor: "bottom", x: 0 },
      ...layout,
      dragmode: touch ? false : "zoom",
      xaxis: { ...axis, ...layout.xaxis },
      yaxis: { ...axis, ...layout.yaxis },
    }];
  }

  function draw() {
    for (const plot of plots) {
      const [data, layout] = themed(figures.get(plot), plot);
      Plotly.react(plot, data, layout, { displayModeBar: false, responsive: true });
    }
  }

  function print(on) {
    root.toggleAttribute("data-print", on);
    draw();
    for (const plot of plots) Plotly.Plots.resize(plot);
  }

  draw();
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
  addEventListener("beforeprint", () => print(true));
  addEventListener("afterprint", () => print(false));
  root.dataset.drawn = plots.length;
})();
