// The texts of the page that are too pale: WCAG 2 asks for 4.5 to 1, and 3 to 1 where they are large.
(async () => {
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
  const check = (element, color, words, cell) => {
    const style = getComputedStyle(element), under = cell || ground(element.closest("svg")?.parentElement ?? element);
    const size = parseFloat(style.fontSize), isLarge = size >= 24 || (size >= 18.66 && Number(style.fontWeight) >= 700);
    const found = ratio(channels(color, under), under);
    if (found < (isLarge ? 3 : 4.5)) pale.push(`${found.toFixed(2)} ${element.tagName}.${element.getAttribute("class")} ${words.slice(0, 40)}`);
  };

  for (const element of document.querySelectorAll("body *:not(script, style, noscript, svg *, .unseen)")) {
    const words = [...element.childNodes].filter((node) => node.nodeType === 3).map((node) => node.data.trim()).join("");
    if (words && element.checkVisibility()) check(element, getComputedStyle(element).color, words);
  }

  // Colour of the cell of a heat map under a text of it; the maps are pictures, with gaps.
  const cellUnder = async (text) => {
    const at = text.getBoundingClientRect();
    for (const picture of text.closest(".plot").querySelectorAll(".hm image")) {
      const box = picture.getBoundingClientRect(), loaded = new Image();
      loaded.src = picture.href.baseVal;
      await loaded.decode();
      const canvas = Object.assign(document.createElement("canvas"), { width: loaded.width, height: loaded.height });
      const pen = canvas.getContext("2d");
      pen.drawImage(loaded, 0, 0);
      const x = (at.x + at.width / 2 - box.x) / box.width * loaded.width, y = (at.y + at.height / 2 - box.y) / box.height * loaded.height;
      const [r, g, b, alpha] = pen.getImageData(x, y, 1, 1).data;
      if (alpha) return [r, g, b];
    }
    throw new Error(`no cell under ${text.textContent}`);
  };

  for (const text of document.querySelectorAll(".main-svg text")) {
    const under = text.closest(".heatmap-label") && await cellUnder(text);
    if (text.textContent) check(text, getComputedStyle(text).fill, text.textContent, under);
  }
  return [...new Set(pale)];
})()
