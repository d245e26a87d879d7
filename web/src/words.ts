// Numbers as people read them: the same words as flowrl/report/numbers.py.

export function seconds(value: number): string {
  if (value <= 0) return "0 s";
  if (value < 0.01) return `${Number((value * 1000).toPrecision(2))} ms`;
  if (value < 1) return `${(value * 1000).toFixed(0)} ms`;
  if (value < 10) return `${value.toFixed(2)} s`;
  if (value < 1000) return `${value.toFixed(1)} s`;
  if (value < 7200) return `${(value / 60).toFixed(1)} min`;
  return `${(value / 3600).toLocaleString("en", { maximumFractionDigits: 1, minimumFractionDigits: 1 })} h`;
}

export function gib(bytes: number): string {
  const scaled = bytes / 2 ** 30;
  return scaled >= 10 ? scaled.toFixed(1) : scaled.toFixed(2);
}

export function amount(value: number, unit: string): string {
  if (unit === "bytes") return `${gib(value)} GiB`;
  if (unit === "seconds") return seconds(value);
  return `${Number(value.toPrecision(6)).toLocaleString("en")} ${unit}`;
}

export const percent = (share: number): string => `${(100 * share).toFixed(0)} %`;
