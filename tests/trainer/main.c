// The trainer: a launcher, or one rank where the environment says which.
#include <stdio.h>
#include <stdlib.h>

#include "device.h"
#include "rank.h"

/** A number from the environment; -1 if it is not there. */
static int environment_number(const char *name) {
  const char *text = getenv(name);
  char *end;
  if (text == NULL) return -1;
  long value = strtol(text, &end, 10);
  if (end == text || *end != '\0' || value < 0 || value > 65535) rp_die("%s is '%s'", name, text);
  return (int)value;
}

static int print_schedule(const struct rp_schedule *schedule) {
  char *text = NULL;
  size_t length = 0;
  if (rp_schedule_print(schedule, &text, &length) != RP_OK) return 1;
  fwrite(text, 1, length, stdout);
  free(text);
  return 0;
}

int main(int argc, char **argv) {
  struct rp_trainer_options options;
  struct rp_program program;
  rp_trainer_options_parse(argc, argv, &options);
  if (rp_program_create(&options, &program) != 0) return 2;
  int rank = environment_number("RANK"), ranks = environment_number("WORLD_SIZE"), status;
  bool launched = getenv(RP_TRAINER_ID_FD) != NULL || options.rendezvous != NULL;
  if (options.print_schedule) {
    status = print_schedule(&program.phases[0].schedule);
  } else if (rank >= 0 && ranks > 0 && launched) {
    int local_rank = environment_number("LOCAL_RANK");
    if (ranks != program.ranks || rank >= ranks)
      rp_die("WORLD_SIZE is %d, the schedule is for %d ranks", ranks, program.ranks);
    status = rp_rank_run(&options, &program, rank, local_rank >= 0 ? local_rank : rank);
  } else {
    status = rp_launcher_run(&program, argv);
  }
  rp_program_fini(&program);
  rp_trainer_options_fini(&options);
  return status;
}
