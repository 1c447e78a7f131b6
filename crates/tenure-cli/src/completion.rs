//! `tenure completions` and `tenure man`, which are generated from the definition of the arguments.

use std::io::{self, Write as _};

use clap::CommandFactory as _;

use crate::args::{Cli, Completions};
use crate::console::Console;
use crate::exit::Exit;

/// Prints a script for the shell.
pub(crate) fn completions(args: &Completions, console: &Console) -> Exit {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "tenure", &mut script);
    write(&script, console)
}

/// Prints the manual page, with all actions on one page.
pub(crate) fn man(console: &Console) -> Exit {
    match manual() {
        Ok(page) => write(&page, console),
        Err(error) => {
            console.error(format!("cannot make the manual page: {error}"));
            Exit::Failed
        }
    }
}

fn manual() -> io::Result<Vec<u8>> {
    let mut command = Cli::command();
    command.build();
    let mut page = Vec::new();
    let whole = clap_mangen::Man::new(command.clone());
    whole.render_title(&mut page)?;
    whole.render_name_section(&mut page)?;
    whole.render_synopsis_section(&mut page)?;
    whole.render_description_section(&mut page)?;
    whole.render_options_section(&mut page)?;
    for action in command
        .get_subcommands()
        .filter(|action| !action.is_hide_set())
    {
        writeln!(page, ".SH \"TENURE {}\"", action.get_name().to_uppercase())?;
        let part = clap_mangen::Man::new(action.clone());
        // Each action is one section of the page, so the sections of clap become subsections.
        let mut sections = Vec::new();
        part.render_synopsis_section(&mut sections)?;
        part.render_description_section(&mut sections)?;
        part.render_options_section(&mut sections)?;
        if action.get_after_long_help().is_some() {
            part.render_extra_section(&mut sections)?;
        }
        for line in String::from_utf8_lossy(&sections).lines() {
            match line.strip_prefix(".SH ") {
                // The text itself begins with the line "Examples:", which is left out.
                Some("EXTRA") => writeln!(page, ".SS EXAMPLES\n.nf")?,
                None if line == "Examples:" => {}
                Some(head) => writeln!(page, ".SS {head}")?,
                None => writeln!(page, "{line}")?,
            }
        }
        // Ends the examples, whose lines must not be filled.
        writeln!(page, ".fi")?;
    }
    whole.render_extra_section(&mut page)?;
    whole.render_version_section(&mut page)?;
    Ok(page)
}

fn write(bytes: &[u8], console: &Console) -> Exit {
    match io::stdout().lock().write_all(bytes) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            console.error(format!("cannot write to standard output: {error}"));
            Exit::Failed
        }
        _ => Exit::Done,
    }
}
