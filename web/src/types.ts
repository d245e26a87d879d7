// The View that flowrl/report/view.py makes.

export interface Place { file: string; line: number; end_line: number }
export interface Line {
  what: string; role: string | null; value: number; unit: string; formula: string;
  inputs: Record<string, unknown>; origins: Record<string, string>;
}
export interface Bar {
  id: string; role: string; target: string; kind: "work" | "move" | "weights"; text: string;
  start: number; seconds: number; measured: number | null; measured_start: number | null; critical: boolean; work: Line[];
}
export interface Phase {
  device: string; phase: string; peak_bytes: number; limit_bytes: number; lines: Line[]; spans: [number, number][];
}
export interface Living { role: string; kind: string; backend: string; layout: string; notes: string[] }
export interface Pool {
  name: string; device: string; devices: string[]; busy: number; roles: Living[]; bars: Bar[]; phases: Phase[];
}
export interface Node {
  id: string; role: string; kind: string; label: string; note: string; pool: string; derived: boolean;
  reads: string[]; writes: string[];
}
export interface Arrow { source: string; target: string; kind: "data" | "weights" | "interaction"; text: string }
export interface Graph { name: string; nodes: Node[]; arrows: Arrow[]; removed: string[] }
export interface Rejected { option: string; reason: string; delta: string | null }
export interface Decision {
  id: string; what: string; chosen: string; reason: string; text: string; rejected: Rejected[]; override: string | null;
}
export interface Row { id: string; role: string; target: string; seconds: number; measured: number }
export interface Stage {
  name: string; step_seconds: number; measured_seconds: number | null; figures: [string, string][];
  measured_figures: [string, string][]; rows: Row[]; bound: string;
  graphs: Graph[]; pools: Pool[]; decisions: Decision[]; places: Record<string, Place>;
}
export interface Message { code: string; severity: string; text: string; helps: string[]; place: Place | null }
export interface View {
  name: string; digest: string; verdict: string; cluster: string; nodes: [string, string[]][]; stages: Stage[];
  messages: Message[]; sources: { path: string; text: string }[]; curves: Record<string, [number, number][]>;
}
