/* Looks for the kill switch. It decides about the memory of a running job, so it believes a file only where
 * nobody but the job's user and root can have made it appear. */
#include "agent/switch_off.h"

#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

void rp_switch_off_name(const char *report_name, char *out, size_t out_size) {
  const char *dot = strrchr(report_name, '.');
  int base = dot && strcmp(dot, ".json") == 0 ? (int)(dot - report_name) : (int)strlen(report_name);
  snprintf(out, out_size, "%.*s.disable", base, report_name);
}

static bool trusted(uid_t owner) {
  return owner == geteuid() || owner == 0;
}

/* In a folder that others may write, without the sticky bit, they can rename any file of ours to this name;
 * and its owner always can. */
static const char *wrong_folder(const struct stat *info) {
  if (!trusted(info->st_uid)) return "the report folder belongs to another user";
  if ((info->st_mode & (S_IWGRP | S_IWOTH)) && !(info->st_mode & S_ISVTX))
    return "others can rename files in the report folder; chmod go-w or +t helps";
  return NULL;
}

static const char *wrong_file(const struct stat *info) {
  if (S_ISLNK(info->st_mode)) return "it is a link";
  if (!S_ISREG(info->st_mode)) return "it is no plain file";
  if (!trusted(info->st_uid)) return "it belongs neither to the user of the job nor to root";
  if (info->st_nlink != 1) return "it has further names (hard links)";
  return NULL;
}

/* Whether something of that name is there; `why` is "" where it counts. Nothing is opened, so that whatever
 * lies there cannot be waited for, and root's file need not be readable. */
static bool look_at(int folder, const char *name, const char **why) {
  struct stat file, dir;
  if (fstatat(folder, name, &file, AT_SYMLINK_NOFOLLOW) != 0) return false;
  const char *wrong = wrong_file(&file);
  if (!wrong) wrong = fstat(folder, &dir) == 0 ? wrong_folder(&dir) : "the report folder cannot be looked at";
  *why = wrong ? wrong : "";
  return true;
}

enum rp_switch_off rp_switch_off_look(const char *dir, const char *report_name, char *file, size_t file_size,
                                      char *why, size_t why_size) {
  char own[NAME_MAX + 1];
  const char *wrong = NULL, *names[] = {own, RP_SWITCH_OFF_ALL};
  enum rp_switch_off found = RP_SWITCH_OFF_NO;
  rp_switch_off_name(report_name, own, sizeof own);
  int folder = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (folder < 0) return RP_SWITCH_OFF_NO;
  for (size_t i = 0; i < sizeof names / sizeof names[0] && found != RP_SWITCH_OFF_YES; i++) {
    if (!look_at(folder, names[i], &wrong)) continue;
    found = wrong[0] ? RP_SWITCH_OFF_REFUSED : RP_SWITCH_OFF_YES;
    snprintf(file, file_size, "%s", names[i]);
    if (wrong[0]) snprintf(why, why_size, "%s is not honoured: %s", names[i], wrong);
  }
  (void)close(folder);
  return found;
}
