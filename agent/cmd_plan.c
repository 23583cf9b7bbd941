/* `recvpool plan`: how many receive buffers a schedule needs, on paper. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "agent/plan_command.h"

static int fail(rp_status status, const char *message) {
  rp_cmd_error("plan", "%s", message[0] ? message : rp_status_text(status));
  return RP_EXIT_FAILURE;
}

static rp_status from_file(const char *path, const struct rp_plan_options *options, struct rp_plan **plan,
                           char *message, size_t message_size) {
  char *text = NULL;
  size_t length;
  rp_status status = rp_plan_read_text(path, &text, &length, message, message_size);
  if (!status) status = rp_plan_from_text(path, text, length, options, plan, message, message_size);
  free(text);
  return status;
}

static rp_status make_plan(const struct rp_plan_arguments *a, struct rp_plan **plan,
                           struct rp_plan_provenance *provenance, struct rp_plan_observation *observation,
                           char *message, size_t message_size) {
  *provenance = (struct rp_plan_provenance){.replicas = a->replicas, .recvpool = RECVPOOL_VERSION};
  if (a->schedule) {
    provenance->kind = "schedule";
    provenance->source = a->schedule;
    return rp_plan_create_named(a->schedule, a->ranks, a->stages / a->ranks, a->microbatches, &a->options,
                                plan, message, message_size);
  }
  if (a->lowered) {
    provenance->kind = "lowered_file";
    provenance->source = a->lowered;
    return from_file(a->lowered, &a->options, plan, message, message_size);
  }
  provenance->kind = "report";
  provenance->source = a->from_report;
  rp_status status =
      rp_plan_from_reports(a->from_report, 0, &a->options, plan, observation, message, message_size);
  if (!status) provenance->world_size = observation->world_size;
  provenance->note = !status && observation->note[0] ? observation->note : NULL;
  return status;
}

/* JSON integers and the sums over replicas must hold every number. */
static bool sums_fit(const struct rp_plan *plan, int32_t replicas) {
  struct rp_plan_totals t;
  uint64_t product;
  rp_plan_totals_get(plan, &t);
  return !__builtin_mul_overflow(t.bytes_stock, (uint64_t)replicas, &product) && product <= INT64_MAX;
}

static int put_out(const struct rp_plan_arguments *a, const struct rp_plan *plan,
                   const struct rp_plan_provenance *provenance,
                   const struct rp_plan_observation *observation) {
  json_t *json = a->json || a->output ? rp_plan_to_json(plan, provenance) : NULL;
  int status = 0;
  if ((a->json || a->output) && !json) return fail(RP_ERROR_NO_MEMORY, "");
  if (a->output && rp_plan_write(json, a->output) != RP_OK) {
    rp_cmd_error("plan", "cannot write %s: %s", a->output, strerror(errno));
    status = RP_EXIT_FAILURE;
  }
  if (a->json) {
    json_dumpf(json, stdout, JSON_INDENT(1));
    putchar('\n');
  } else {
    rp_plan_print(plan, provenance, a->stage, observation->piece_bytes, stdout);
    if (a->timeline) rp_plan_print_timeline(plan, a->stage, stdout);
    if (a->output && !status) printf("Plan written to %s.\n", a->output);
  }
  json_decref(json);
  if (fflush(stdout) != 0 || ferror(stdout)) {
    rp_cmd_error("plan", "cannot write to stdout");
    status = RP_EXIT_FAILURE;
  }
  if (!status && observation->caution) rp_cmd_error("plan", "%s: %s", a->from_report, observation->caution);
  return status;
}

/* A saved plan, a schedule file, or a named schedule: which of them a file is, its first character tells. -1
 * to go on, else the exit status. */
static int make_expectation(const struct rp_plan_arguments *a, struct rp_plan **plan) {
  struct rp_plan_provenance ignored;
  struct rp_plan_observation none;
  char message[512] = "", *text = NULL;
  size_t length;
  int result = -1;
  rp_status status =
      a->schedule ? RP_OK : rp_plan_read_text(a->lowered, &text, &length, message, sizeof(message));
  if (!status && !text)
    status = make_plan(a, plan, &ignored, &none, message, sizeof(message));
  else if (!status && !rp_plan_is_saved(text, length))
    status = rp_plan_from_text(a->lowered, text, length, &a->options, plan, message, sizeof(message));
  else if (!status && (result = rp_plan_check_settled(&a->options)) < 0)
    status = rp_plan_from_plan(a->lowered, text, length, &a->options, plan, message, sizeof(message));
  free(text);
  return status ? fail(status, message) : result;
}

static int compare(const struct rp_plan_arguments *a) {
  struct rp_plan *plan = NULL, *run = NULL;
  struct rp_plan_observation observation;
  char message[512] = "";
  int result = make_expectation(a, &plan);
  if (result >= 0) return result;
  rp_status status = rp_plan_from_reports(a->from_report, plan->ranks, &a->options, &run, &observation,
                                          message, sizeof(message));
  size_t departures = status ? 0 : rp_plan_print_departures(plan, run, observation.by_receipt, stdout);
  rp_plan_destroy(plan);
  rp_plan_destroy(run);
  if (departures == SIZE_MAX) status = RP_ERROR_NO_MEMORY;
  if (status) return fail(status, message);
  if (fflush(stdout) != 0 || ferror(stdout)) return fail(RP_ERROR_IO, "cannot write to stdout");
  return departures ? RP_EXIT_FAILURE : 0;
}

int rp_cmd_plan(int argc, char **argv) {
  struct rp_plan_arguments a;
  int taken = rp_plan_take_arguments(argc, argv, &a);
  if (taken >= 0) return taken;
  a.options.tensor_bytes = a.tensor_bytes;
  if (a.compare) return compare(&a);
  struct rp_plan *plan = NULL;
  struct rp_plan_provenance provenance;
  struct rp_plan_observation observation = {0};
  char message[512] = "";
  rp_plan_ticker_start(&a);
  rp_status status = make_plan(&a, &plan, &provenance, &observation, message, sizeof(message));
  rp_plan_ticker_stop();
  if (status) return fail(status, message);
  int result;
  if (a.stage >= plan->stages) {
    rp_cmd_error("plan", "there is no stage %d; stages are 0 to %d", (int)a.stage, (int)plan->stages - 1);
    result = RP_EXIT_USAGE;
  } else if (!sums_fit(plan, a.replicas)) {
    result = fail(RP_ERROR_LIMIT, "the sizes are too large to add up; are bytes and replicas right?");
  } else if ((a.json || a.output) && !rp_plan_fits_file(plan)) {
    result =
        fail(RP_ERROR_LIMIT, "a class has more buffers than a plan file can hold, 2147483647; plan fewer "
                             "microbatches: the slots do not depend on them");
  } else {
    result = put_out(&a, plan, &provenance, &observation);
  }
  rp_plan_destroy(plan);
  return result;
}
