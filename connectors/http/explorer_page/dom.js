// Elements out of names, attributes and texts. A text only ever becomes a text node, so that none becomes markup.

/** An element. `on`: listeners by event; `style`: CSS properties; an attribute that is null or false is left out. */
export function el(name, attributes = {}, ...children) {
  return fill(document.createElement(name), attributes, children);
}

/** The same for SVG. */
export function svg(name, attributes = {}, ...children) {
  return fill(document.createElementNS("http://www.w3.org/2000/svg", name), attributes, children);
}

/** The element of an id, which the page has. */
export function byId(id) {
  return document.getElementById(id);
}

/** Puts these into an element, in place of all that was there. */
export function show(element, ...children) {
  element.replaceChildren(...children.flat().filter((child) => child !== null));
}

function fill(element, { on = {}, style = {}, ...attributes }, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value !== null && value !== false && value !== undefined) element.setAttribute(name, value === true ? "" : value);
  }
  for (const [event, listener] of Object.entries(on)) element.addEventListener(event, listener);
  for (const [property, value] of Object.entries(style)) element.style.setProperty(property, value);
  element.append(...children.flat().filter((child) => child !== null));
  return element;
}
