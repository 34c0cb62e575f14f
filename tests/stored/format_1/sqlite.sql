BEGIN TRANSACTION;
CREATE TABLE "clicks_dead" (pipeline TEXT NOT NULL, topic TEXT NOT NULL, "partition" INTEGER NOT NULL, "offset" BIGINT NOT NULL, "timestamp" TEXT, "key" BLOB, value BLOB, headers TEXT NOT NULL, error TEXT NOT NULL, place TEXT NOT NULL, PRIMARY KEY (pipeline, topic, "partition", "offset"));
INSERT INTO "clicks_dead" VALUES('clicks','clicks',1,42,'2026-11-18T12:30:00+00:00',X'006B',X'7B62726F6B656E','[["trace", "/zE="], ["none", null]]','not valid JSON','decode');
CREATE TABLE headrace_history (
        pipeline TEXT NOT NULL, number INTEGER NOT NULL, change TEXT NOT NULL, PRIMARY KEY (pipeline, number));
INSERT INTO "headrace_history" VALUES('clicks',1,'{"at": 1763500001.0, "who": "ada", "action": "reset", "note": "moved back by 30", "before": {"clicks": {"0": 150, "1": 95}}, "after": {"clicks": {"0": 120, "1": 95}}, "last_batch": 7}');
CREATE TABLE headrace_marks (
    pipeline TEXT NOT NULL, message TEXT NOT NULL, marked BIGINT NOT NULL, PRIMARY KEY (pipeline, message));
INSERT INTO "headrace_marks" VALUES('clicks','clicks-0-7',1795078396);
CREATE TABLE headrace_offsets (
        pipeline TEXT NOT NULL, topic TEXT NOT NULL, "partition" INTEGER NOT NULL, next_offset BIGINT NOT NULL,
        PRIMARY KEY (pipeline, topic, "partition"));
INSERT INTO "headrace_offsets" VALUES('clicks','clicks',0,120);
INSERT INTO "headrace_offsets" VALUES('clicks','clicks',1,95);
CREATE TABLE headrace_pipelines (
        pipeline TEXT PRIMARY KEY, last_batch BIGINT NOT NULL, topic_ids TEXT NOT NULL, pending TEXT, run TEXT);
INSERT INTO "headrace_pipelines" VALUES('clicks',7,'{"clicks": "q1Zz0b3WTm2u0w", "": "1"}','{"id": 8, "ranges": [["clicks", 0, 120, 150], ["clicks", 1, 95, 97]], "topic_ids": {"clicks": "q1Zz0b3WTm2u0w"}, "epoch": 1}','{"host": "host-1", "pid": 4711, "started": 1763500000.5, "beat": 1763500030.25, "pid_space": "5f0c:4026531836"}');
COMMIT;
