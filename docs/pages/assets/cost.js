// The bill of a stream and of its readers, from list prices.
"use strict";
(() => {
  // US dollars in us-east-1. The prices were not compared with https://aws.amazon.com/kinesis/data-streams/pricing/.
  const price = {
    shard_hour: 0.015, // provisioned: each open shard
    put_million: 0.014, // provisioned: a million PUT payload units of 25 KB
    consumer_shard_hour: 0.015, // provisioned: each stream consumer and open shard
    consumer_gb: 0.013, // provisioned: read by stream consumers
    extended_shard_hour: 0.02, // provisioned: retention of 24 hours to 7 days
    on_demand_stream_hour: 0.04,
    on_demand_in_gb: 0.08, // each record is rounded up to 1 KB
    on_demand_out_gb: 0.04, // read by polling
    on_demand_consumer_gb: 0.05, // read by stream consumers
    on_demand_extended_gb_month: 0.1, // retention of 24 hours to 7 days
    long_term_gb_month: 0.023, // both: retention of more than 7 days
    registry_write_million: 0.625, // DynamoDB on demand: a million writes
  };
  const KB = 2 ** 10;
  const MB = 2 ** 20;
  const GB = 2 ** 30;
  const DAY = 24;
  const WEEK = 168;
  const HOURS_OF_MONTH = 730;
  const SHARD_RECORDS = 1000; // a second
  const PUT_UNIT = 25 * KB;
  const HEARTBEATS = 360; // writes of a lease an hour
  // The overhead of an aggregate: magic bytes, digest and key table, then the framing of each record.
  const AGGREGATE_BYTES = 64;
  const ENTRY_BYTES = 8;
  const COMPARED_AGGREGATE_BYTES = 51200;
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
    const entry = load.record_bytes + ENTRY_BYTES;
    const together = Math.max(1, Math.floor((load.aggregate_bytes - AGGREGATE_BYTES) / entry));
    return [load.records / together, AGGREGATE_BYTES + together * entry];
  }

  function openShards(load) {
    const [records, size] = stored(load);
    const megabytes = (records * size) / MB;
    const needed = Math.max(1, megabytes, records / SHARD_RECORDS, (megabytes * load.polling) / 2);
    return load.shards || Math.ceil(needed);
  }

  // What an hour costs: [what, quantity, unit, price of one].
  function bill(load) {
    const [records, size] = stored(load);
    const gb = (records * size * 3600) / GB;
    const extendedHours = Math.min(load.retention_hours, WEEK) - DAY;
    const longGb = gb * Math.max(0, load.retention_hours - WEEK);
    const items = [];
    if (load.on_demand) {
      const rounded = (records * Math.ceil(size / KB) * KB * 3600) / GB;
      items.push(
        ["the stream, on demand", 1, "stream-hours", price.on_demand_stream_hour],
        ["written", rounded, "GB", price.on_demand_in_gb],
        ["read by polling", gb * load.polling, "GB", price.on_demand_out_gb],
        ["read by consumers", gb * load.consumers, "GB", price.on_demand_consumer_gb],
        ["kept for up to 7 days", gb * extendedHours, "GB-months / 730", price.on_demand_extended_gb_month / HOURS_OF_MONTH],
      );
    } else {
      const shards = openShards(load);
      const units = Math.ceil(size / PUT_UNIT);
      items.push(
        ["open shards", shards, "shard-hours", price.shard_hour],
        ["written", (records * units * 3600) / 1e6, "million PUT units", price.put_million],
        ["consumers", shards * load.consumers, "consumer-shard-hours", price.consumer_shard_hour],
        ["read by consumers", gb * load.consumers, "GB", price.consumer_gb],
        ["kept for up to 7 days", extendedHours > 0 ? shards : 0, "shard-hours", price.extended_shard_hour],
      );
    }
    items.push(
      ["kept for longer", longGb, "GB-months / 730", price.long_term_gb_month / HOURS_OF_MONTH],
      ["registry in DynamoDB", (load.leases * HEARTBEATS) / 1e6, "million writes", price.registry_write_million],
    );
    return items.filter(([, quantity]) => quantity);
  }

  const total = (items) => items.reduce((sum, [, quantity, , price]) => sum + quantity * price, 0);

  // Numbers with commas: "1,129.60".
  function commas(text) {
    const [whole, ...fraction] = text.split(".");
    return [whole.replace(/\B(?=(\d{3})+$)/g, ","), ...fraction].join(".");
  }

  // With so many significant digits at most: "7.2", "3.15068e-05".
  function general(value, digits) {
    const [mantissa, exponent] = value.toExponential(digits - 1).split("e");
    const power = Number(exponent);
    if (power < -4 || power >= digits) {
      return `${Number(mantissa)}e${power < 0 ? "-" : "+"}${String(Math.abs(power)).padStart(2, "0")}`;
    }
    const text = value.toFixed(digits - 1 - power);
    return commas(text.includes(".") ? text.replace(/\.?0+$/, "") : text);
  }

  const usd = (hour) => [commas(hour.toFixed(4)), commas((hour * HOURS_OF_MONTH).toFixed(2))];

  function billRows(load) {
    const items = bill(load);
    const rows = items.map(([what, quantity, unit, each]) => [
      what,
      `${quantity >= 1000 ? commas(quantity.toFixed(0)) : general(quantity, 4)} ${unit}`,
      general(each, 6),
      ...usd(quantity * each),
    ]);
    return [...rows, ["all", "", "", ...usd(total(items))]];
  }

  function wayRows(load) {
    const readers = Math.max(1, load.consumers + load.polling);
    const rows = [];
    for (const on_demand of [false, true]) {
      for (const byFanOut of [false, true]) {
        for (const aggregate_bytes of [null, COMPARED_AGGREGATE_BYTES]) {
          const [consumers, polling] = byFanOut ? [readers, 0] : [0, readers];
          const way = { ...load, on_demand, consumers, polling, aggregate_bytes, shards: null };
          rows.push([
            on_demand ? "on demand" : "provisioned",
            byFanOut ? `${readers} by fan-out` : `${readers} polling`,
            aggregate_bytes === null ? "as they are" : "aggregated",
            on_demand ? "-" : commas(String(openShards(way))),
            ...usd(total(bill(way))),
          ]);
        }
      }
    }
    return rows;
  }

  function fill(table, rows) {
    const line = (cells) => {
      const row = document.createElement("tr");
      row.append(...cells.map((text) => Object.assign(document.createElement("td"), { textContent: text })));
      return row;
    };
    table.tBodies[0].replaceChildren(...rows.map(line));
  }

  function show() {
    field("shards").disabled = field("on_demand").checked;
    const right = form.checkValidity();
    document.querySelector("#cost-wrong").hidden = right;
    document.querySelector("#cost-result").hidden = !right;
    if (!right) return;
    const load = given();
    fill(document.querySelector("#cost-bill"), billRows(load));
    fill(document.querySelector("#cost-ways"), wayRows(load));
  }

  form.addEventListener("input", show);
  form.addEventListener("submit", (event) => event.preventDefault());
  form.hidden = false;
  show();
})();
