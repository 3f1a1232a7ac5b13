// The theme, and its palette for drawing on a canvas.
import { computed, effect, signal } from "@preact/signals";

const NAMES = ["paper", "ink", "muted", "line", "bark", "moss", "lichen", "ember", "amber", "plum"] as const;

export type Palette = Record<(typeof NAMES)[number], string>;
export type Theme = "auto" | "light" | "dark";

const KEY = "treering.theme";
const night = matchMedia("(prefers-color-scheme: dark)");
const system = signal(night.matches);
night.addEventListener("change", () => {
  system.value = night.matches;
});

export const theme = signal<Theme>((localStorage.getItem(KEY) as Theme | null) ?? "auto");
export const isDark = computed(() => theme.value === "dark" || (theme.value === "auto" && system.value));

effect(() => {
  document.documentElement.dataset["theme"] = isDark.value ? "dark" : "light";
});

export function toggleTheme(): void {
  const next = isDark.value ? "light" : "dark";
  theme.value = next === (system.value ? "dark" : "light") ? "auto" : next;
  if (theme.value === "auto") localStorage.removeItem(KEY);
  else localStorage.setItem(KEY, theme.value);
}

export const colours = computed<Palette>(() => {
  void isDark.value;
  const style = getComputedStyle(document.documentElement);
  return Object.fromEntries(NAMES.map((name) => [name, style.getPropertyValue(`--${name}`).trim()])) as Palette;
});
