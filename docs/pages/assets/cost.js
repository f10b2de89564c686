// `penstock cost` in a browser, item for item: what it counts by is in cost-facts.js, which is made of the command.
"use strict";
(() => {
  const { limits, prices, columns } = costFacts;
  const form = document.querySelector("#cost");
  const field = (name) => form.elements[name];
  const number = (name) => (field(name).value === "" ? null : Number(field(name).value));

  function given() {
    return {
      records: number("records"),
      record_bytes: number("record_bytes"),
      shards: field("on_demand").checked ? null : number("shards"),
      on_demand: field("on_demand").checked,
      consumers: number("consumers"),
      polling: number("polling"),
      retention_hours: number("retention_hours"),
      aggregate_bytes: number("aggregate_bytes"),
      leases: number("leases"),
    };
  }

  // Records a second as Kinesis sees them, and the bytes of each.
  function stored(load) {
    if (load.aggregate_bytes === null) return [load.records, load.record_bytes];
    const entry = load.record_bytes + limits.ENTRY_BYTES;
    const together = Math.max(1, Math.floor((load.aggregate_bytes - limits.AGGREGATE_BYTES) / entry));
    return [load.records / together, limits.AGGREGATE_BYTES + together * entry];
  }

  function openShards(load) {
    const [records, size] = stored(load);
    const megabytes = (records * size) / limits.MB;
    const needed = Math.max(1, megabytes, records / limits.SHARD_RECORDS, (megabytes * load.polling) / 2);
    return load.shards || Math.ceil(needed);
  }

  // What an hour costs: [what, quantity, unit, price of one].
  function bill(load, price) {
    const [records, size] = stored(load);
    const gb = (records * size * 3600) / limits.GB;
    const extendedHours = Math.min(load.retention_hours, limits.WEEK) - limits.DAY;
    const longGb = gb * Math.max(0, load.retention_hours - limits.WEEK);
    const month = limits.HOURS_OF_MONTH;
    const items = [];
    if (load.on_demand) {
      const rounded = (records * Math.ceil(size / limits.KB) * limits.KB * 3600) / limits.GB;
      items.push(
        ["the stream, on demand", 1, "stream-hours", price.on_demand_stream_hour],
        ["written", rounded, "GB", price.on_demand_in_gb],
        ["read by polling", gb * load.polling, "GB", price.on_demand_out_gb],
        ["read by consumers", gb * load.consumers, "GB", price.on_demand_consumer_gb],
        ["kept for up to 7 days", gb * extendedHours, "GB-months / 730", price.on_demand_extended_gb_month / month],
      );
    } else {
      const shards = openShards(load);
      const units = Math.ceil(size / limits.PUT_UNIT);
      items.push(
        ["open shards", shards, "shard-hours", price.shard_hour],
        ["written", (records * units * 3600) / 1e6, "million PUT units", price.put_million],
        ["consumers", shards * load.consumers, "consumer-shard-hours", price.consumer_shard_hour],
        ["read by consumers", gb * load.consumers, "GB", price.consumer_gb],
        ["kept for up to 7 days", extendedHours > 0 ? shards : 0, "shard-hours", price.extended_shard_hour],
      );
    }
    items.push(
      ["kept for longer", longGb, "GB-months / 730", price.long_term_gb_month / month],
      ["registry in DynamoDB", (load.leases * limits.HEARTBEATS) / 1e6, "million writes", price.registry_write_million],
    );
    return items.filter(([, quantity]) => quantity);
  }

  const total = (items) => items.reduce((sum, [, quantity, , price]) => sum + quantity * price, 0);

  // As the command writes numbers: "1,129.60" and, of so many digits, "7.2".
  function commas(text) {
    const [whole, ...fraction] = text.split(".");
    return [whole.replace(/\B(?=(\d{3})+$)/g, ","), ...fraction].join(".");
  }

  function general(value, digits) {
    const [mantissa, exponent] = value.toExponential(digits - 1).split("e");
    const power = Number(exponent);
    if (power < -4 || power >= digits) {
      return `${Number(mantissa)}e${power < 0 ? "-" : "+"}${String(Math.abs(power)).padStart(2, "0")}`;
    }
    const text = value.toFixed(digits - 1 - power);
    return commas(text.includes(".") ? text.replace(/\.?0+$/, "") : text);
  }

  const usd = (hour) => [commas(hour.toFixed(4)), commas((hour * limits.HOURS_OF_MONTH).toFixed(2))];

  function billRows(load, price) {
    const items = bill(load, price);
    const rows = items.map(([what, quantity, unit, each]) => [
      what,
      `${quantity >= 1000 ? commas(quantity.toFixed(0)) : general(quantity, 4)} ${unit}`,
      general(each, 6),
      ...usd(quantity * each),
    ]);
    return [...rows, ["all", "", "", ...usd(total(items))]];
  }

  function wayRows(load, price) {
    const readers = Math.max(1, load.consumers + load.polling);
    const rows = [];
    for (const on_demand of [false, true]) {
      for (const byFanOut of [false, true]) {
        for (const aggregate_bytes of [null, limits.COMPARED_AGGREGATE_BYTES]) {
          const [consumers, polling] = byFanOut ? [readers, 0] : [0, readers];
          const way = { ...load, on_demand, consumers, polling, aggregate_bytes, shards: null };
          rows.push([
            on_demand ? "on demand" : "provisioned",
            byFanOut ? `${readers} by fan-out` : `${readers} polling`,
            aggregate_bytes === null ? "as they are" : "aggregated",
            on_demand ? "-" : commas(String(openShards(way))),
            ...usd(total(bill(way, price))),
          ]);
        }
      }
    }
    return rows;
  }

  function fill(table, headings, rows) {
    const line = (cells, tag) => {
      const row = document.createElement("tr");
      row.append(...cells.map((text) => Object.assign(document.createElement(tag), { textContent: text })));
      return row;
    };
    table.tHead.replaceChildren(line(headings, "th"));
    table.tBodies[0].replaceChildren(...rows.map((row) => line(row, "td")));
  }

  function show() {
    field("shards").disabled = field("on_demand").checked;
    const right = form.checkValidity();
    document.querySelector("#cost-wrong").hidden = right;
    document.querySelector("#cost-result").hidden = !right;
    if (!right) return;
    const load = given();
    const price = prices[field("region").value];
    fill(document.querySelector("#cost-bill"), columns.bill, billRows(load, price));
    fill(document.querySelector("#cost-ways"), columns.ways, wayRows(load, price));
    document.querySelector("#cost-prices").textContent =
      `List prices of ${field("region").value} as of ${price.as_of}; a month has ${limits.HOURS_OF_MONTH} hours.`;
  }

  field("region").append(...Object.keys(prices).map((name) => new Option(name, name)));
  for (const [name, value] of Object.entries(costFacts.load)) {
    if (typeof value === "number") field(name).value = value;
  }
  form.addEventListener("input", show);
  form.addEventListener("submit", (event) => event.preventDefault());
  form.hidden = false;
  show();
})();
