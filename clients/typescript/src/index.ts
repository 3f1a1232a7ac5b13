export { Treering } from "./client.js";
export type { ClientOptions, Given } from "./client.js";
export { TreeringError, Unreachable } from "./errors.js";
export type { FollowOptions } from "./live.js";
export { Memory, Runs, Thread, Threads } from "./resources.js";
export type * from "./api.js";
