-- A store with schema 2, as `sqlite3 .dump` writes it.
BEGIN TRANSACTION;
CREATE TABLE consumers (
  namespace TEXT NOT NULL,
  stream_name TEXT NOT NULL,
  consumer_name TEXT NOT NULL,
  version INTEGER NOT NULL,
  fencing_token INTEGER NOT NULL,
  created_at REAL NOT NULL,
  phase TEXT NOT NULL,
  consumer_arn TEXT NOT NULL,
  registration_is_ours INTEGER NOT NULL,
  registering_token INTEGER NOT NULL,
  job_id TEXT,
  holding_token INTEGER,
  acquired_at REAL,
  renewed_at REAL,
  time_to_live_seconds REAL,
  idle_since REAL,
  ended_token INTEGER NOT NULL DEFAULT 0,
  claim TEXT NOT NULL DEFAULT '',
  PRIMARY KEY (namespace, stream_name, consumer_name)
) WITHOUT ROWID
;
INSERT INTO "consumers" VALUES('https://kinesis.eu-west-1.amazonaws.com','arn:aws:kinesis:eu-west-1:123456789012:stream/flights','delays',11,3,1750000000.0,'registered','arn:aws:kinesis:eu-west-1:123456789012:stream/flights/consumer/delays:1700000001',1,0,'delays-prod',3,1750000000.0,1.75000000039990019802e+09,30.0,NULL,0,'run-1');
INSERT INTO "consumers" VALUES('https://kinesis.eu-west-1.amazonaws.com','arn:aws:kinesis:eu-west-1:123456789012:stream/flights','idle',5,1,1.75000000039990019802e+09,'registered','arn:aws:kinesis:eu-west-1:123456789012:stream/flights/consumer/idle:1700000002',1,0,NULL,NULL,NULL,NULL,NULL,1.75000000072395849232e+09,0,'');
INSERT INTO "consumers" VALUES('https://kinesis.eu-west-1.amazonaws.com','arn:aws:kinesis:eu-west-1:123456789012:stream/weather','by-hand',3,1,1.75000000072395849232e+09,'registered','arn:aws:kinesis:eu-west-1:123456789012:stream/weather/consumer/by-hand:1700000003',0,0,'weather-job',1,1.75000000072395849232e+09,1.75000000082740283019e+09,30.0,NULL,0,'9ea6709948b3421c8fd502f0a7d29896');
INSERT INTO "consumers" VALUES('https://kinesis.eu-west-1.amazonaws.com','arn:aws:kinesis:eu-west-1:123456789012:stream/weather','ended',5,1,1.75000000082740283019e+09,'registered','arn:aws:kinesis:eu-west-1:123456789012:stream/weather/consumer/ended:1700000004',1,0,NULL,NULL,NULL,NULL,NULL,1.75000000105075430864e+09,1,'');
PRAGMA user_version = 2;
COMMIT;

