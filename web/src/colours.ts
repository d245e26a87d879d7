// One colour for each role, the same in all parts of the page. Names stand beside colours everywhere.

const HUES = 10;

export class Colours {
  private readonly places = new Map<string, number>();

  constructor(roles: Iterable<string>) {
    for (const role of roles) if (!this.places.has(role)) this.places.set(role, this.places.size % HUES);
  }

  of(role: string | null): string {
    const place = role === null ? undefined : this.places.get(role);
    return place === undefined ? "var(--nobody)" : `var(--role-${place})`;
  }
}
