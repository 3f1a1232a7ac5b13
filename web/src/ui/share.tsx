export function Share({ of, total }: { of: number; total: number }) {
  return (
    <span class="share" aria-hidden="true">
      <i style={{ width: `${total > 0 ? Math.max(0.5, (of / total) * 100) : 0}%` }} />
    </span>
  );
}
