// What a person with a keyboard, a screen reader, a small or a dark screen needs: returns a list of what is wrong.
// Run inside the page.
(() => {
  const wrong = [];
  const say = (what, element) => wrong.push(`${what}: ${element.outerHTML.slice(0, 160)}`);
  const shown = (element) => {
    const box = element.getBoundingClientRect();
    return box.width > 0 && box.height > 0 && getComputedStyle(element).visibility !== "hidden" && !element.closest("[hidden], details:not([open]) > :not(summary)");
  };
  const nameOf = (element) => {
    const by = element.getAttribute("aria-labelledby");
    if (by) return by.split(" ").map((id) => document.getElementById(id)?.textContent ?? "").join(" ").trim();
    return (element.getAttribute("aria-label") ?? element.labels?.[0]?.textContent ?? element.textContent ?? "").trim();
  };

  // ---- names and structure
  if (!document.documentElement.lang) wrong.push("no language");
  if (!document.title) wrong.push("no title");
  if (document.querySelectorAll("h1").length !== 1 || document.querySelectorAll("main").length !== 1) wrong.push("one h1 and one main");
  const ids = [...document.querySelectorAll("[id]")].map((element) => element.id);
  ids.filter((id, i) => ids.indexOf(id) !== i).forEach((id) => wrong.push(`id twice: ${id}`));
  for (const element of document.querySelectorAll("button, a, select, input, summary, [role=region], [role=group], [role=img], section, canvas"))
    if (shown(element) && !nameOf(element)) say("no name", element);
  for (const element of document.querySelectorAll("svg:not([aria-hidden])"))
    if (shown(element) && !element.getAttribute("role")) say("a drawing without a role", element);
  for (const element of document.querySelectorAll("[aria-labelledby], label[for]"))
    for (const id of (element.getAttribute("aria-labelledby") ?? element.htmlFor).split(" "))
      if (!document.getElementById(id)) say("names an element that is not there", element);
  for (const head of document.querySelectorAll("th")) if (!head.scope) say("head without scope", head);
  let level = 0;
  for (const heading of [...document.querySelectorAll("h1, h2, h3, h4")].filter(shown)) {
    if (Number(heading.tagName[1]) > level + 1) say("heading level left out", heading);
    level = Number(heading.tagName[1]);
  }
  for (const element of document.querySelectorAll(".scroll"))
    if (shown(element) && element.scrollWidth > element.clientWidth && element.tabIndex < 0 && !element.querySelector("[tabindex='0']"))
      say("scrolls, but not by keyboard", element);

  // ---- contrast
  const parse = (text) => {
    const numbers = text.match(/[\d.]+/g)?.map(Number) ?? [0, 0, 0, 0];
    return { rgb: numbers.slice(0, 3), alpha: text === "transparent" || text === "none" ? 0 : numbers[3] ?? 1 };
  };
  const over = (top, below) => top.rgb.map((value, i) => value * top.alpha + below[i] * (1 - top.alpha));
  const light = (rgb) => {
    const [r, g, b] = rgb.map((value) => (value / 255 <= 0.03928 ? value / 255 / 12.92 : ((value / 255 + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const ratio = (a, b) => {
    const [high, low] = [light(a), light(b)].sort((x, y) => y - x);
    return (high + 0.05) / (low + 0.05);
  };
  const groundOf = (element) => {
    const layers = [];
    for (let at = element; at; at = at.parentElement) layers.unshift(parse(getComputedStyle(at).backgroundColor));
    return layers.reduce((below, layer) => over(layer, below), [255, 255, 255]);
  };
  // the shapes under a point of a drawing, lowest first
  const shapesAt = (text, x, y) => [...text.ownerSVGElement.querySelectorAll("rect")].filter((shape) => {
    const box = shape.getBoundingClientRect();
    return shape.compareDocumentPosition(text) & Node.DOCUMENT_POSITION_FOLLOWING && x >= box.left && x <= box.right && y >= box.top && y <= box.bottom;
  });
  const texts = [...document.querySelectorAll("body *")].filter((element) => shown(element) && element.tagName !== "title" && element.tagName !== "OPTION" &&
    [...element.childNodes].some((node) => node.nodeType === Node.TEXT_NODE && node.textContent.trim()));
  for (const element of texts) {
    const style = getComputedStyle(element), drawn = element instanceof SVGElement;
    let ground = groundOf(drawn ? element.ownerSVGElement : element);
    if (drawn) {
      const box = element.getBoundingClientRect();
      for (const shape of shapesAt(element, box.left + box.width / 2, box.top + box.height / 2)) {
        const fill = parse(getComputedStyle(shape).fill);
        ground = over({ rgb: fill.rgb, alpha: fill.alpha * Number(getComputedStyle(shape).fillOpacity) }, ground);
      }
    }
    const found = ratio(over(parse(drawn ? style.fill : style.color), ground), ground);
    if (found < 4.5) say(`contrast ${found.toFixed(2)}`, element);
  }
  for (const shape of document.querySelectorAll("rect.stock, rect.needed, rect.held, rect.life.used")) {
    const found = ratio(over(parse(getComputedStyle(shape).fill), groundOf(shape.ownerSVGElement)), groundOf(shape.ownerSVGElement));
    if (shown(shape) && found < 2.5) say(`contrast of a shape ${found.toFixed(2)}`, shape);
  }

  // ---- room
  if (document.documentElement.scrollWidth > innerWidth) wrong.push(`wider than the window: ${document.documentElement.scrollWidth}`);
  for (const element of document.querySelectorAll("body *"))
    if (shown(element) && !element.closest(".scroll, .skip, svg") && element.getBoundingClientRect().right > innerWidth + 1) say("sticks out", element);
  for (const svg of document.querySelectorAll("svg")) {
    const boxes = [...svg.querySelectorAll("text")].filter(shown).map((text) => [text, text.getBoundingClientRect()]);
    const frame = svg.getBoundingClientRect();
    boxes.forEach(([text, box], i) => {
      if (box.left < frame.left - 1 || box.right > frame.right + 1 || box.bottom > frame.bottom + 1) say("text is cut", text);
      for (const [, other] of boxes.slice(i + 1))
        if (box.left < other.right - 1 && other.left < box.right - 1 && box.top < other.bottom - 2 && other.top < box.bottom - 2) say("texts overlap", text);
    });
  }
  for (const element of texts)
    if (!(element instanceof SVGElement) && !element.closest(".scroll") && element.scrollWidth > element.clientWidth + 1 && getComputedStyle(element).overflowX === "hidden")
      say("text is cut", element);
  return [...new Set(wrong)];
})()
