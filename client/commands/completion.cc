// kvstreamctl completion: a script made from the table of commands and their options.
#include <cstdio>
#include <set>

#include "client/commands/command.h"

namespace kvstream::ctl {
namespace {

std::vector<Option> OptionsOf(const Command& command) {
  std::vector<Option> options;
  Globals globals;
  globals.described = &options;
  command.run(command, globals, {});
  return options;
}

void Append(const std::string& word, const char* separator, std::string* words) {
  if (!words->empty()) *words += separator;
  *words += word;
}

// Adds the options' names to `words`, and those that take a value to `with_value`.
void AppendOptions(const std::vector<Option>& options, std::string* words,
                   std::set<std::string>* with_value) {
  for (const Option& option : options) {
    Append(option.name, " ", words);
    if (!option.value.empty()) with_value->insert(option.name);
  }
}

std::string BashScript() {
  Globals globals;
  std::string shared;
  std::set<std::string> values;
  AppendOptions(GlobalOptions(&globals), &shared, &values);
  std::string names;
  std::string cases;
  for (const Command& command : Commands()) {
    Append(command.name, " ", &names);
    std::string words = command.words;
    AppendOptions(OptionsOf(command), &words, &values);
    Append(shared, " ", &words);
    cases += std::string("      ") + command.name + ") words=\"" + words + "\"; break ;;\n";
  }
  std::string with_value;
  for (const std::string& name : values) Append(name, "|", &with_value);
  // A value is completed as a file name, which is what no match falls back to.
  return "_kvstreamctl() {\n"
         "  local word=${COMP_WORDS[COMP_CWORD]} words=\"" +
         names + " " + shared +
         "\" i\n"
         "  COMPREPLY=()\n"
         "  case ${COMP_WORDS[COMP_CWORD-1]} in " +
         with_value +
         ") return ;; esac\n"
         "  for ((i = 1; i < COMP_CWORD; ++i)); do\n"
         "    case ${COMP_WORDS[i]} in\n"
         "      " +
         with_value +
         ") ((++i)) ;;\n"
         "      -*) ;;\n" +
         cases +
         "    esac\n"
         "  done\n"
         "  COMPREPLY=($(compgen -W \"$words\" -- \"$word\"))\n"
         "}\n"
         "complete -o default -F _kvstreamctl kvstreamctl\n";
}

}  // namespace

int RunCompletion(const Command& command, Globals globals,
                  const std::vector<std::string>& arguments) {
  std::vector<std::string> rest;
  if (auto code = ParseCommand(command, &globals, arguments, {}, &rest)) return *code;
  if (rest.size() != 1 || (rest[0] != "bash" && rest[0] != "zsh")) {
    return UsageError(command, "takes bash or zsh");
  }
  if (rest[0] == "zsh")
    std::printf("#compdef kvstreamctl\nautoload -U +X bashcompinit && bashcompinit\n");
  std::printf("%s", BashScript().c_str());
  return kDone;
}

}  // namespace kvstream::ctl
