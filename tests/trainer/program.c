// What a run does step by step: reads, makes and checks the schedules that the options name.
#include "program.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "schedule_tools.h"

static int complain(const char *name, const char *what) {
  fprintf(stderr, "trainer: schedule '%s': %s\n", name, what);
  return -1;
}

/** Reads a whole file; NULL after a message. The caller frees it. */
static char *read_file(const char *path, size_t *length) {
  FILE *file = fopen(path, "rb");
  char *text = NULL;
  size_t capacity = 0, used = 0;
  while (file != NULL && !feof(file) && !ferror(file)) {
    if (used == capacity) {
      capacity = capacity == 0 ? 65536 : 2 * capacity;
      char *bigger = realloc(text, capacity);
      if (bigger == NULL) break;
      text = bigger;
    }
    used += fread(text + used, 1, capacity - used, file);
  }
  bool whole = file != NULL && feof(file) && !ferror(file);
  if (!whole) fprintf(stderr, "trainer: cannot read schedule '%s': %s\n", path, strerror(errno));
  if (file != NULL) fclose(file);
  if (whole) {
    *length = used;
    return text;
  }
  free(text);
  return NULL;
}

static rp_status schedule_from_file(const char *path, struct rp_schedule *schedule,
                                    struct rp_schedule_error *error) {
  size_t length = 0;
  char *text = read_file(path, &length);
  if (text == NULL) return RP_ERROR_IO;
  rp_status status = rp_schedule_parse(text, length, schedule, error);
  free(text);
  if (status != RP_OK) return status;
  status = rp_schedule_lower(schedule, error);
  if (status == RP_OK) status = rp_schedule_check(schedule, error);
  if (status != RP_OK) rp_schedule_fini(schedule);
  return status;
}

static int adopt_file_sizes(struct rp_trainer_options *options, const char *name,
                            const struct rp_schedule *schedule) {
  if (options->ranks != 0 && options->ranks != schedule->ranks) {
    fprintf(stderr, "trainer: schedule '%s' is for %d ranks, not %d\n", name, schedule->ranks,
            options->ranks);
    return -1;
  }
  options->ranks = schedule->ranks;
  options->chunks = schedule->stages / schedule->ranks;
  options->microbatches = schedule->microbatches;
  return 0;
}

/** Whether it is one that is made by name; and whether it has several stages per rank. */
static bool is_named(const char *name, bool *looped) {
  static const char *const named[] = {"gpipe", "1f1b", "interleaved_1f1b", "looped_bfs"};
  for (size_t i = 0; i < sizeof named / sizeof named[0]; i++) {
    *looped = i >= 2;
    if (strcmp(name, named[i]) == 0) return true;
  }
  return false;
}

/** Makes one schedule; completes ranks, chunks and microbatches. */
static int make_schedule(struct rp_trainer_options *options, const char *name, int32_t microbatches,
                         struct rp_schedule *schedule) {
  struct rp_schedule_error error = {.message = ""};
  bool looped = false, named = is_named(name, &looped);
  rp_status status;
  if (named) {
    if (options->ranks == 0) options->ranks = 4;
    if (options->chunks == 0) options->chunks = looped ? 2 : 1;
    if (options->microbatches == 0) options->microbatches = 8;
    if (microbatches == 0) microbatches = options->microbatches;
    status = rp_schedule_generate(name, options->ranks, options->chunks, microbatches, schedule, &error);
  } else {
    status = schedule_from_file(name, schedule, &error);
  }
  if (status == RP_OK && (named || adopt_file_sizes(options, name, schedule) == 0)) return 0;
  if (status == RP_OK) rp_schedule_fini(schedule);
  if (status != RP_OK && status != RP_ERROR_IO)
    fprintf(stderr, "trainer: schedule '%s': %s: %s\n", name, rp_status_text(status), error.message);
  return -1;
}

// ---- random runs

/** Draws what a correct run may have one way or the other. */
static int make_random(struct rp_trainer_options *options, struct rp_schedule *schedule) {
  struct rp_schedule_error error = {.message = ""};
  uint64_t random = ~options->random_seed;
  if (!rp_schedule_random(options->random_seed, options->ranks, options->chunks, options->microbatches,
                          schedule))
    return complain("random", "no memory");
  rp_status status = rp_schedule_check(schedule, &error);
  if (status == RP_OK) status = rp_schedule_check_one_channel(schedule, &error);
  if (status != RP_OK || !rp_schedule_ends(schedule)) {
    rp_schedule_fini(schedule);
    return complain("random", error.message[0] ? error.message : "would not end");
  }
  options->ranks = schedule->ranks;
  options->chunks = schedule->stages / schedule->ranks;
  options->microbatches = schedule->microbatches;
  options->recompute |= rp_random_below(&random, 2) != 0;
  options->backward_thread |= rp_random_below(&random, 2) != 0;
  options->own_stream |= rp_random_below(&random, 2) != 0;
  return 0;
}

// ---- phases

/** A phase more, with nothing in it yet. */
static struct rp_phase *add_phase(struct rp_program *program, int32_t first_step, const char *name) {
  struct rp_phase *phases = realloc(program->phases, (program->count + 1) * sizeof *phases);
  if (phases == NULL) return NULL;
  program->phases = phases;
  phases += program->count++;
  *phases = (struct rp_phase){.first_step = first_step, .name = name};
  return phases;
}

static int add_switches(struct rp_trainer_options *options, struct rp_program *program) {
  const char *name = options->schedule;
  int32_t microbatches = options->microbatches;
  for (size_t i = 0; i < options->switch_count; i++) {
    const struct rp_switch *change = &options->switches[i];
    struct rp_schedule schedule;
    if (change->schedule != NULL) name = change->schedule;
    if (change->microbatches != 0) microbatches = change->microbatches;
    if (make_schedule(options, name, microbatches, &schedule) != 0) return -1;
    const struct rp_schedule *first = &program->phases[0].schedule;
    bool same =
        schedule.stages == first->stages && memcmp(schedule.stage_rank, first->stage_rank,
                                                   (size_t)first->stages * sizeof *first->stage_rank) == 0;
    struct rp_phase *phase = same ? add_phase(program, change->step, name) : NULL;
    if (phase == NULL) {
      rp_schedule_fini(&schedule);
      return complain(name, same ? "no memory" : "places the stages unlike the schedule before it");
    }
    phase->schedule = schedule;
  }
  return 0;
}

static int add_early_posts(const struct rp_trainer_options *options, struct rp_program *program) {
  struct rp_phase *phase = add_phase(program, options->mistake_step, options->schedule);
  if (phase == NULL || !rp_schedule_copy(&program->phases[0].schedule, &phase->schedule))
    return complain(options->schedule, "no memory");
  if (!rp_schedule_post_early(&phase->schedule))
    return complain(options->schedule, "its receives cannot be posted earlier");
  return 0;
}

static int add_evaluations(struct rp_program *program) {
  for (size_t i = 0; i < program->count; i++)
    if (!rp_schedule_forwards(&program->phases[i].schedule, &program->phases[i].evaluation))
      return complain(program->phases[i].name, "no memory");
  return 0;
}

int rp_program_create(struct rp_trainer_options *options, struct rp_program *program) {
  *program = (struct rp_program){0};
  struct rp_schedule schedule;
  int result = options->random ? make_random(options, &schedule)
                               : make_schedule(options, options->schedule, options->microbatches, &schedule);
  if (result != 0) return -1;
  struct rp_phase *phase = add_phase(program, 0, options->random ? "random" : options->schedule);
  if (phase == NULL) {
    rp_schedule_fini(&schedule);
    return complain(options->schedule, "no memory");
  }
  phase->schedule = schedule;
  program->ranks = schedule.ranks;
  program->stages = schedule.stages;
  program->stage_rank = schedule.stage_rank;
  result = add_switches(options, program);
  if (result == 0 && options->mistake == RP_MISTAKE_EARLY_POST) result = add_early_posts(options, program);
  if (result == 0 && options->eval_every + options->eval_first > 0) result = add_evaluations(program);
  for (size_t i = 0; i < program->count; i++)
    if (program->phases[i].schedule.microbatches > program->most_microbatches)
      program->most_microbatches = program->phases[i].schedule.microbatches;
  if (result == 0 && options->identity >= program->stages - 1)
    result = complain(options->schedule, "--identity-stage is neither the first nor the last stage");
  if (result != 0) rp_program_fini(program);
  return result;
}

void rp_program_fini(struct rp_program *program) {
  for (size_t i = 0; i < program->count; i++) {
    rp_schedule_fini(&program->phases[i].schedule);
    rp_schedule_fini(&program->phases[i].evaluation);
  }
  free(program->phases);
  *program = (struct rp_program){0};
}

const struct rp_phase *rp_program_phase(const struct rp_program *program, int32_t step) {
  size_t at = 0;
  while (at + 1 < program->count && program->phases[at + 1].first_step <= step)
    at++;
  return &program->phases[at];
}

int32_t rp_program_evaluations(const struct rp_trainer_options *options, int32_t step) {
  if (step < 0) return options->eval_first;
  return options->eval_every > 0 && (step + 1) % options->eval_every == 0 ? options->eval_count : 0;
}

bool rp_phase_is_gpipe(const struct rp_phase *phase) {
  return strcmp(phase->name, "gpipe") == 0;
}

bool rp_phase_is_1f1b(const struct rp_phase *phase) {
  return strcmp(phase->name, "1f1b") == 0;
}
