// The library, as a module.
import { modules } from "./amd.js";
import "./library/d3.js";

export const d3 = modules.get("gravis-d3-v7");
