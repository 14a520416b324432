// The library registers itself with `define`, as AMD modules do. This takes what it registers, in a page or a worker.
export const modules = new Map();

globalThis.require = { defined: (name) => modules.has(name) };
globalThis.define = (name, _needs, factory) => {
  const exported = {};
  factory(exported);
  modules.set(name, exported);
};
