// The texts of the page that are too pale: WCAG 2 asks for 4.5 to 1, and 3 to 1 where they are large.
(() => {
  const brush = Object.assign(document.createElement("canvas"), { width: 1, height: 1 }).getContext("2d", { willReadFrequently: true });

  const channels = (color, under = [255, 255, 255]) => {
    brush.fillStyle = `rgb(${under.join(" ")})`;
    brush.fillRect(0, 0, 1, 1);
    brush.fillStyle = color;
    brush.fillRect(0, 0, 1, 1);
    return [...brush.getImageData(0, 0, 1, 1).data.slice(0, 3)];
  };

  const ground = (element) => {
    const layers = [];
    for (let at = element; at; at = at.parentElement) layers.push(getComputedStyle(at).backgroundColor);
    return layers.reverse().reduce((under, color) => channels(color, under), [255, 255, 255]);
  };

  const luminance = (rgb) => {
    const [r, g, b] = rgb.map((value) => value / 255).map((c) => (c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };

  const ratio = (a, b) => {
    const [high, low] = [luminance(a), luminance(b)].sort((x, y) => y - x);
    return (high + 0.05) / (low + 0.05);
  };

  const pale = [];
  const check = (element, color, words) => {
    const style = getComputedStyle(element), under = ground(element.closest("svg")?.parentElement ?? element);
    const size = parseFloat(style.fontSize), isLarge = size >= 24 || (size >= 18.66 && Number(style.fontWeight) >= 700);
    const found = ratio(channels(color, under), under);
    if (found < (isLarge ? 3 : 4.5)) pale.push(`${found.toFixed(2)} ${element.tagName}.${element.getAttribute("class")} ${words.slice(0, 40)}`);
  };

  for (const element of document.querySelectorAll("body *:not(script, style, noscript, svg *, .unseen)")) {
    const words = [...element.childNodes].filter((node) => node.nodeType === 3).map((node) => node.data.trim()).join("");
    if (words && element.checkVisibility()) check(element, getComputedStyle(element).color, words);
  }
  // What stands on bars and cells has the colour that plotly chooses for what is under it.
  for (const text of document.querySelectorAll(".main-svg text:not(.bartext, .heatmap-label *)")) {
    if (text.textContent) check(text, getComputedStyle(text).fill, text.textContent);
  }
  return [...new Set(pale)];
})()
