// What stands out too little from what is behind it, as [[what, its contrast, the least that will do], ...] of
// everything that is seen, by the formula of WCAG 2: 4.5 for text, 3 for the lines of plots. The verdict is looked at in
// each of its colours.
(() => {
  const rgb = (text) => {
    const [r, g, b, a] = text.match(/[\d.]+/g).map(Number);
    return { r, g, b, a: a === undefined ? 1 : a };
  };
  const light = ({ r, g, b }) => {
    const linear = (n) => (n / 255 <= 0.04045 ? n / 255 / 12.92 : ((n / 255 + 0.055) / 1.055) ** 2.4);
    return 0.2126 * linear(r) + 0.7152 * linear(g) + 0.0722 * linear(b);
  };
  const opaque = (color) => {
    if (color.a !== 1) throw new Error("a colour that others show through is not judged");
    return color;
  };
  const behind = (node) => {
    for (let at = node; at; at = at.parentElement) {
      const color = rgb(getComputedStyle(at).backgroundColor);
      if (color.a > 0) return opaque(color);
    }
    throw new Error("nothing is behind it");
  };
  const contrast = (front, back) => {
    const [a, b] = [light(opaque(front)), light(back)];
    return (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
  };
  const seen = [];
  const verdict = document.getElementById("verdict");
  const was = verdict.className;
  for (const severity of ["well", "warning", "critical"]) {
    verdict.className = severity;
    for (const node of document.body.querySelectorAll("*")) {
      const own = [...node.childNodes].some((child) => child.nodeType === Node.TEXT_NODE && child.textContent.trim());
      if (!own || !node.checkVisibility()) continue;
      const what = `${severity}: ${node.textContent.trim().slice(0, 60)}`;
      seen.push([what, contrast(rgb(getComputedStyle(node).color), behind(node)), 4.5]);
    }
  }
  verdict.className = was;
  for (const path of document.querySelectorAll("#plots path")) {
    seen.push(["the line of a plot", contrast(rgb(getComputedStyle(path).stroke), behind(path.closest("figure"))), 3]);
  }
  return { seen: seen.length, faint: seen.filter(([, found, least]) => !(found >= least)), page: light(behind(document.body)) };
})()
