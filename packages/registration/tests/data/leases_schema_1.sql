-- A store of release 0.1.0's first schema, as `sqlite3 .dump` writes it.
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
  PRIMARY KEY (namespace, stream_name, consumer_name)
) WITHOUT ROWID
;
INSERT INTO "consumers" VALUES('https://kinesis.eu-west-1.amazonaws.com','arn:aws:kinesis:eu-west-1:123456789012:stream/weather','by-arn',4,1,1.7500000006966230869e+09,'registered','arn:aws:kinesis:eu-west-1:123456789012:stream/weather/consumer/by-arn:1700000004',1,0,'arn-job',1,1.7500000006966230869e+09,1.75000000090250301364e+09,30.0,NULL);
INSERT INTO "consumers" VALUES('https://kinesis.eu-west-1.amazonaws.com','flights','begun',1,1,1.75000100132151317593e+09,'registering','',0,1,'begun-job',1,1.75000100132151317593e+09,1.75000100132151317593e+09,120.0,NULL);
INSERT INTO "consumers" VALUES('https://kinesis.eu-west-1.amazonaws.com','flights','delays',11,3,1750000000.0,'registered','arn:aws:kinesis:eu-west-1:123456789012:stream/flights/consumer/delays:1700000001',1,0,'delays-prod',3,1750000000.0,1.75000000039353942869e+09,30.0,NULL);
INSERT INTO "consumers" VALUES('https://kinesis.eu-west-1.amazonaws.com','flights','idle',5,1,1.75000000039353942869e+09,'registered','arn:aws:kinesis:eu-west-1:123456789012:stream/flights/consumer/idle:1700000002',1,0,NULL,NULL,NULL,NULL,NULL,1.75000000054124784472e+09);
INSERT INTO "consumers" VALUES('https://kinesis.eu-west-1.amazonaws.com','gone','begun',1,1,1.75000100132151317593e+09,'registering','',0,1,'begun-job',1,1.75000100132151317593e+09,1.75000100132151317593e+09,120.0,NULL);
INSERT INTO "consumers" VALUES('https://kinesis.eu-west-1.amazonaws.com','weather','by-hand',3,1,1.75000000054124784472e+09,'registered','arn:aws:kinesis:eu-west-1:123456789012:stream/weather/consumer/by-hand:1700000003',0,0,'weather-job',1,1.75000000054124784472e+09,1.7500000006966230869e+09,30.0,NULL);
INSERT INTO "consumers" VALUES('https://kinesis.eu-west-1.amazonaws.com','weather','ended',10,2,1.75000000090250301364e+09,'absent','',0,0,NULL,NULL,NULL,NULL,NULL,1.75000000130997014052e+09);
PRAGMA user_version = 1;
COMMIT;
